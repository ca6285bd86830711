"""Evaluation: a tiny model, simulated users with hidden preferences, and the metrics of learning."""
