"""The tiny model: its text, its tokenizer, its training, and what it can do."""
