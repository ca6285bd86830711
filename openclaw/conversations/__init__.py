"""Where a request belongs: its session and its parent turn, in memory and across restarts. No HTTP."""
