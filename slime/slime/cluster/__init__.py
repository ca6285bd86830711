"""Where things run: Ray places engines, trainer ranks and the server as actors. The only folder that imports Ray."""
