"""Where samples come from: conversations that are going on, or prompts of a file."""
