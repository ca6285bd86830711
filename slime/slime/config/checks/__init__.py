"""What settings mean together: which have an effect, which contradict each other, and what a start needs."""
