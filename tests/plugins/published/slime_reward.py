"""Reward functions to slime's documented signatures: of one sample, and of a group."""

from slime.utils.types import Sample


async def custom_rm(args, sample: Sample, **kwargs) -> float:
    return 1.0 if sample.response.startswith("yes") and sample.label is not None else -1.0


async def batched_custom_rm(args, samples: list[Sample], **kwargs) -> list[float]:
    longest = max(sample.response_length for sample in samples)
    return [sample.response_length / longest for sample in samples]
