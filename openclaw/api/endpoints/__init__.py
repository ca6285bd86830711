"""One file for each wire format: it reads a body, and writes the answer whole or as a stream."""
