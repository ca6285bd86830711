"""Reads requests: wire formats, canonical messages, plain text, kind and claimed session. No HTTP."""
