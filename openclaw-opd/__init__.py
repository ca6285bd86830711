"""On-policy distillation: what was written is weighed by the same model after it has read the hint."""
