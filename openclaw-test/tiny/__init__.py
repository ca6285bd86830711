"""The tiny model: its training text, tokenizer, training, and abilities."""
