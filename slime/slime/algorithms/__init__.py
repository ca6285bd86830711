"""The mathematics of learning: losses, advantages, reductions. Torch only: no files, no configuration, no processes."""
