"""The runtime: an OpenAI-compatible server that captures every turn."""
