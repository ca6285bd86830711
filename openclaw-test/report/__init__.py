"""What a demo and an evaluation show: figures with intervals, tables, live screens and pictures."""
