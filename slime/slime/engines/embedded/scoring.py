"""Log-probs beyond those of the sampled tokens: of prompt tokens, of the most likely ids, of ids that were asked for."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch

from slime.engines.embedded.planning import StepPlan
from slime.engines.embedded.sequence import LogprobsWanted, Sequence, TopRow


def score_prompts(plan: StepPlan, logits: torch.Tensor) -> None:
    """Record log-probs of prompt tokens, at temperature 1, from the rows of `logits` behind those that are sampled."""
    row = len(plan.sampled)
    for sequence, positions in plan.scoring:
        assert sequence.logprobs is not None
        logprobs = torch.log_softmax(logits[row : row + len(positions)], dim=-1)
        row += len(positions)
        top, chosen = rows_of(logprobs, sequence.logprobs)
        inside = [position for position in positions if position + 1 < len(sequence.prompt_ids)]
        targets = torch.tensor([sequence.prompt_ids[position + 1] for position in inside], device=logits.device)
        if inside:
            sequence.input_logprobs.extend(logprobs[: len(inside)].gather(1, targets[:, None])[:, 0].tolist())
        sequence.input_top.extend(top[: len(inside)])
        sequence.input_chosen.extend(chosen[: len(inside)])
        # What lies behind the last prompt token is the place of the first output token.
        sequence.output_top.extend(top[len(inside) :])
        sequence.output_chosen.extend(chosen[len(inside) :])


def record_top(sampled: Items[Sequence], logprobs: torch.Tensor) -> None:
    """Record the further log-probs of sampled rows."""
    for row, sequence in enumerate(sampled):
        if sequence.logprobs is not None and (sequence.logprobs.num_top or sequence.logprobs.token_ids):
            top, chosen = rows_of(logprobs[row : row + 1], sequence.logprobs)
            sequence.output_top.extend(top)
            sequence.output_chosen.extend(chosen)


def rows_of(logprobs: torch.Tensor, wanted: LogprobsWanted) -> tuple[list[TopRow], list[TopRow]]:
    """(log-prob, id) rows of the most likely ids and of the ids asked for, for `[places, vocab]` log-probs."""
    floor = torch.finfo(torch.float32).min  # JSON has no infinity; SGLang answers the same
    top: list[TopRow] = []
    chosen: list[TopRow] = []
    if wanted.num_top:
        values, ids = logprobs.clamp_min(floor).topk(min(wanted.num_top, logprobs.shape[-1]), dim=-1)
        top = [list(zip(*row, strict=True)) for row in zip(values.tolist(), ids.tolist(), strict=True)]
    if wanted.token_ids:
        columns = torch.tensor(wanted.token_ids, device=logprobs.device)
        values = logprobs[:, columns].clamp_min(floor)
        chosen = [list(zip(row, wanted.token_ids, strict=True)) for row in values.tolist()]
    return top, chosen
