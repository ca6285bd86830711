"""What is done to stored sessions outside a run: collect, import, move, judge again, calibrate, inspect."""
