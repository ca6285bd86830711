"""Simulated users: their hidden preferences, their requests, and their reactions to replies."""
