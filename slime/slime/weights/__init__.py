"""Weights on disk: durable `directories`, whole `models`, LoRA `adapters`, and their numbers, the `versions`."""
