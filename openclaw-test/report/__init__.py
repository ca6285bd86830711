"""Reports of a demo and an evaluation: metrics with intervals, tables, a live screen and plots."""
