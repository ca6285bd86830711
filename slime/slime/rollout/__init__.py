"""Where samples come from: conversations that are going on."""
