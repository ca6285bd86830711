"""Code that was written for slime: its `Sample`, its `args`, its hooks and call style, in terms of ours."""
