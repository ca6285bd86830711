"""Log-probs beyond those of the sampled tokens: of prompt tokens, of the likeliest ids, of ids that were asked for."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch

from slime.engines.dialect.answers import Entry
from slime.engines.dialect.requests import GenerateCall
from slime.engines.embedded.planning import StepPlan
from slime.engines.embedded.sequence import Sequence


def score_prompts(plan: StepPlan, logits: torch.Tensor) -> None:
    """Record log-probs of prompt tokens, at temperature 1, from the rows of `logits` behind those that are sampled."""
    row = len(plan.sampled)
    for sequence, positions in plan.scoring:
        logprobs = torch.log_softmax(logits[row : row + len(positions)], dim=-1)
        row += len(positions)
        top, chosen = _rows(logprobs, sequence.call)
        prompt_ids = sequence.call.input_ids
        followers = prompt_ids[positions.start + 1 : positions.stop + 1]
        targets = torch.tensor(followers, dtype=torch.long, device=logits.device)
        num_inside, output = len(targets), sequence.output
        output.input_logprobs.extend(logprobs[:num_inside].gather(1, targets[:, None])[:, 0].tolist())
        output.input_top.extend(top[:num_inside])
        output.input_chosen.extend(chosen[:num_inside])
        # What lies behind the last prompt token is the place of the first output token.
        output.top.extend(top[num_inside:])
        output.chosen.extend(chosen[num_inside:])


def score_outputs(sampled: Items[Sequence], logprobs: torch.Tensor) -> None:
    """Record the further log-probs of sampled rows that want any."""
    for row, sequence in enumerate(sampled):
        call = sequence.call
        if call.return_logprob and (call.top_logprobs_num or call.token_ids_logprob):
            top, chosen = _rows(logprobs[row : row + 1], call)
            sequence.output.top.extend(top)
            sequence.output.chosen.extend(chosen)


def _rows(logprobs: torch.Tensor, call: GenerateCall) -> tuple[list[list[Entry]], list[list[Entry]]]:
    """Entries of the most likely ids and of the ids asked for, a row for each of `[places, vocab]` log-probs."""
    floor = torch.finfo(torch.float32).min  # JSON has no infinity; SGLang answers the same
    top: list[list[Entry]] = []
    chosen: list[list[Entry]] = []
    if call.top_logprobs_num:
        values, ids = logprobs.clamp_min(floor).topk(min(call.top_logprobs_num, logprobs.shape[-1]), dim=-1)
        top = _entries(values, ids)
    if call.token_ids_logprob:
        columns = torch.tensor(call.token_ids_logprob, device=logprobs.device)
        chosen = _entries(logprobs[:, columns].clamp_min(floor), columns.expand(len(logprobs), -1))
    return top, chosen


def _entries(values: torch.Tensor, ids: torch.Tensor) -> list[list[Entry]]:
    rows = zip(values.tolist(), ids.tolist(), strict=True)
    return [[(logprob, token_id, None) for logprob, token_id in zip(*row, strict=True)] for row in rows]
