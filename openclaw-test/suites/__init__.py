"""Tasks with exact checks, and the scores of a checkpoint on them."""
