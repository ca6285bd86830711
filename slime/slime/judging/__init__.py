"""Judges score turns by their next state: a chat model, rules, a reward plug-in or a script."""
