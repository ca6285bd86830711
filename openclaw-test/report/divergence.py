"""Measures how far a checkpoint moved from its base model: KL(checkpoint ‖ base) per token of its own replies.

held-out questions ─▶ checkpoint's engine samples ─▶ ids, log π(id) ─┐
                            └─▶ base's engine scores the same ids ───┴─▶ mean of k3 over tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from openclaw_test.people.users import request_seed
from slime.algorithms.losses import reference_kl
from slime.chat import ChatFormat
from slime.engines.client import HttpEngine
from slime.protocols import Engine, GenerateRequest
from slime.types import Message, SamplingParams

Scored = tuple[tuple[int, ...], int, tuple[float, ...]]
"""(prompt and reply ids, where the reply starts, the log-prob of each reply id)."""


async def sample_scored(
    engine: HttpEngine, model_dir: Path, conversations: Sequence[Sequence[Message]], *, max_tokens: int, seed: int
) -> list[Scored]:
    """Sample a reply to each conversation at temperature 1, the model's own distribution, with its log-probs.

    Sequential and from an empty cache, for determinism per seed: batching changes the last bits of float32 sums.
    """
    chat = ChatFormat.load(model_dir)
    await engine.flush_cache()
    scored = []
    for number, messages in enumerate(conversations):
        prompt_ids = chat.render(messages)
        sampling = SamplingParams(
            max_new_tokens=max_tokens,
            stop_token_ids=chat.stop_token_ids,
            seed=request_seed(seed, "divergence", number, 0),
        )
        completion = await engine.generate(GenerateRequest(f"divergence-{seed}-{number}", prompt_ids, sampling))
        scored.append(((*prompt_ids, *completion.token_ids), len(prompt_ids), completion.logprobs))
    return scored


async def kl_to(base: Engine, scored: Sequence[Scored]) -> float:
    """Mean over all reply tokens of k3 = r − 1 − log r with r = p_base / p_checkpoint (Schulman 2020); in nats.

    Unbiased, since the tokens were drawn from the checkpoint; 0 from a model to itself, up to float32.
    """
    base_rows = [(await base.score(ids, start)).logprobs for ids, start, _ in scored]
    base_logprobs = torch.tensor([value for row in base_rows for value in row], dtype=torch.float64)
    own_logprobs = torch.tensor([value for _, _, row in scored for value in row], dtype=torch.float64)
    return float(reference_kl(own_logprobs, base_logprobs, None, "k3").mean())
