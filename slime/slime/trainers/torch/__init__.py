"""The embedded trainer: torch and transformers, on CPU or one GPU a rank."""
