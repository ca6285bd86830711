"""Trainers train: a batch in, new weights out. A backend has a folder of its own, imported when it is chosen."""
