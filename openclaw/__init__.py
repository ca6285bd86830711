"""The runtime: an OpenAI-compatible server that captures what is said to it."""
