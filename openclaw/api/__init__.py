"""The server's HTTP side: endpoints, admission, keys, and what the wire carries."""
