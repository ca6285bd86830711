"""The server's HTTP side: endpoints, admission control, authentication, and the wire."""
