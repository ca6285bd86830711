"""What a request says: its wire format, canonical messages, plain text, kind and claimed session. No HTTP."""
