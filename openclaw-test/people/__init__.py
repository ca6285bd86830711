"""Simulated users: their preferences, what they ask, what they say to a reply."""
