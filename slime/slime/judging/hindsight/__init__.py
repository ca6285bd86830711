"""Hindsight: hints from the next state, the check that they leak no answer, and the teacher that reads them."""
