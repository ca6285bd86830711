"""Weights on disk: whole models (`directories`), LoRA adapters (`adapters`), and their numbers (`versions`)."""
