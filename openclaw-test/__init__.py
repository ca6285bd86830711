"""Does it learn? A tiny model, the people who talk to it, and their scores."""
