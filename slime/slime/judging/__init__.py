"""Who says how good a turn was: a model, rules, a plug-in or a script."""
