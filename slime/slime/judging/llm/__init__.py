"""Judges that ask a chat model: prompts, votes, comparisons, and the models that answer."""
