"""The training core: what is captured becomes samples, samples become updates, updates go live."""
