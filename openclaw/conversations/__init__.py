"""Matches requests to sessions and parent turns, in memory and across restarts. No HTTP."""
