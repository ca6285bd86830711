"""Evaluation suites with exact checks, and a checkpoint's scores on them."""
