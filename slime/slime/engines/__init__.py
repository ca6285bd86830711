"""Engines generate: one client of the dialect, and the servers that speak it."""
