"""From turns to what a trainer takes: stitching, queueing, outcomes, flattening, packing."""
