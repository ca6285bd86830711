"""Advantage estimation: from the rewards of a batch to an advantage and a return for every trained token.

    Batch ─ outcomes ─▶ a reward each ─ estimator ─▶ an advantage each ─▶ a value a token
                                                        − KL in the reward, whitening ─▶ advantages, returns

The formulas are in `slime.algorithms`. Every rank is given the whole batch, so that what is taken over the batch is
the same on all of them. Time passes from one turn of a session to the next, whichever samples and groups they are in:
γ and λ act between turns, and all tokens of a turn are one moment.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Sequence

import torch

from slime.algorithms.advantages import (
    MovingBaseline,
    group_advantages,
    leave_one_out_advantages,
    standardized_advantages,
    step_wise_advantages,
    whiten,
)
from slime.algorithms.reductions import Reduction
from slime.algorithms.returns import advantages_over_turns
from slime.config.sections import LossConfig
from slime.data.outcomes import Outcome, goes_on_from, outcomes
from slime.types import Batch, Sample

_ALWAYS_WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")


def with_advantages(
    batch: Batch, config: LossConfig, baseline: MovingBaseline
) -> tuple[list[Sample], dict[str, float]]:
    """The samples with `rewards`, `advantages` and `returns` streams, and how the rewards were.

    Returns are advantages before whitening, plus the critic's values: what a session really came to.
    A sample that brings advantages of its own keeps them, less the KL in the reward. Tokens of outcomes that the
    estimator drops do not train.

    Args:
        batch: with `old_values` for ppo, and `reference_kl` where the KL is in the reward.
        baseline: of plain REINFORCE; the batch's rewards become part of its past.
    """
    scored = outcomes(batch)
    estimates = _estimates(batch, scored, config, baseline)
    advantages, returns, rewards = ([[0.0] * len(sample.token_ids) for sample in batch.samples] for _ in range(3))
    masks = [[int(bool(flag)) for flag in sample.streams["loss_mask"]] for sample in batch.samples]
    for outcome, estimate, expected in zip(scored, estimates, _values_before(batch, scored), strict=True):
        for (sample, position), kl in zip(outcome.tokens, _charged_kl(batch, outcome, config), strict=True):
            advantages[sample][position] = (estimate or 0.0) - config.kl_coef * kl
            returns[sample][position] = advantages[sample][position] + expected
            rewards[sample][position] = outcome.reward
            masks[sample][position] = int(estimate is not None)
    if config.normalize_advantages or config.advantage_estimator in _ALWAYS_WHITENED:
        _whiten(advantages, [o for o, estimate in zip(scored, estimates, strict=True) if estimate is not None], batch)
    _charge_the_others(advantages, scored, batch, config)
    samples = [
        dataclasses.replace(
            sample,
            streams={**sample.streams, "advantages": a, "loss_mask": mask, "rewards": earned, "returns": r},
        )
        for sample, a, mask, earned, r in zip(batch.samples, advantages, masks, rewards, returns, strict=True)
    ]
    scores = [outcome.reward for outcome in scored] or [0.0]
    return samples, {"reward/mean": statistics.fmean(scores), "reward/std": statistics.pstdev(scores)}


def reduction_of(config: LossConfig) -> Reduction:
    """How the tokens of a step are averaged."""
    if config.advantage_estimator == "dr_grpo":
        return Reduction("constant", config.dr_grpo_length)
    return Reduction("token" if config.calculate_per_token_loss else "trajectory")


def _estimates(
    batch: Batch, scored: Sequence[Outcome], config: LossConfig, baseline: MovingBaseline
) -> Sequence[float | None]:
    """An advantage for each outcome; None where it is dropped."""
    name = config.advantage_estimator
    rewards = [outcome.reward for outcome in scored]
    groups, members = [outcome.group_id for outcome in scored], [outcome.member_id for outcome in scored]
    if name == "ppo":
        return _over_sessions(batch, scored, config, _values_before(batch, scored), config.lambd)
    if name == "reinforce_plus_plus":
        return _over_sessions(batch, scored, config, [0.0] * len(scored), 1.0)
    if name == "step_wise":
        merged = [outcome.outcome + config.prm_step_coef * outcome.reward for outcome in scored]
        return step_wise_advantages(merged, groups, [outcome.step for outcome in scored])
    if name == "reinforce" and config.baseline == "ema":
        return baseline.advantages(rewards, [outcome.source for outcome in scored])
    if not config.rewards_normalization or (name == "reinforce" and config.baseline == "none"):
        return rewards
    return _group_estimator(config)(rewards, groups, members)


def _group_estimator(
    config: LossConfig,
) -> Callable[[Sequence[float], Sequence[str], Sequence[str]], list[float]]:
    if config.advantage_estimator == "rloo":
        return leave_one_out_advantages
    if config.advantage_estimator in ("grpo", "gspo", "cispo") and config.grpo_std_normalization:
        return standardized_advantages
    return group_advantages


def _over_sessions(
    batch: Batch, scored: Sequence[Outcome], config: LossConfig, values: Sequence[float], lambda_: float
) -> list[float]:
    """Generalised advantages over the turns of each session, the KL of a turn being part of its reward."""
    rewards = [outcome.reward - config.kl_coef * sum(_at(batch, "reference_kl", outcome)) for outcome in scored]
    return advantages_over_turns(rewards, values, goes_on_from(scored), gamma=config.gamma, lambda_=lambda_)


def _values_before(batch: Batch, scored: Sequence[Outcome]) -> list[float]:
    """What the critic expected before each outcome's first token; 0 without a critic."""
    return [_at(batch, "old_values", outcome)[0] for outcome in scored]


def _at(batch: Batch, name: str, outcome: Outcome) -> list[float]:
    """A stream at an outcome's tokens; zeros where a sample lacks it."""
    streams = {sample: batch.samples[sample].streams.get(name) for sample in {sample for sample, _ in outcome.tokens}}
    values = ((streams[sample], position) for sample, position in outcome.tokens)
    return [0.0 if stream is None else float(stream[position]) for stream, position in values]


def _charged_kl(batch: Batch, outcome: Outcome, config: LossConfig) -> list[float]:
    """The KL to the reference that each token of an outcome is charged.

    Over sessions the whole KL of a turn is in its reward already. What REINFORCE++ earns from a token on does not
    hold the KL of the turn's tokens before it, so those get it back.
    """
    if not config.kl_coef or config.advantage_estimator == "ppo":
        return [0.0] * len(outcome.tokens)
    kl = _at(batch, "reference_kl", outcome)
    if config.advantage_estimator == "reinforce_plus_plus":
        return [-before for before in itertools.accumulate(kl[:-1], initial=0.0)]
    return kl


def _charge_the_others(
    advantages: Sequence[list[float]], scored: Sequence[Outcome], batch: Batch, config: LossConfig
) -> None:
    """Fill in, in place, advantages that a sample brings, and charge their KL; and that of tokens that nobody scored.

    No estimator looks at either, so each token is charged its own KL, whatever the estimator does with the others'.
    """
    estimated = {place for outcome in scored for place in outcome.tokens}
    for index, sample in enumerate(batch.samples):
        own, kl = sample.streams.get("advantages"), sample.streams.get("reference_kl")
        if own is None and not config.kl_coef:
            continue
        for position, flag in enumerate(sample.streams["loss_mask"]):
            if own is not None or (flag and (index, position) not in estimated):
                charged = config.kl_coef * float(kl[position]) if kl is not None and config.kl_coef else 0.0
                advantages[index][position] = (0.0 if own is None else own[position]) - charged


def _whiten(advantages: Sequence[list[float]], scored: Sequence[Outcome], batch: Batch) -> None:
    """Whiten over all scored tokens of the samples that bring no advantages of their own, in place."""
    own = {index for index, sample in enumerate(batch.samples) if "advantages" in sample.streams}
    places = [place for outcome in scored for place in outcome.tokens if place[0] not in own]
    whitened = whiten(torch.tensor([advantages[i][position] for i, position in places], dtype=torch.float64))
    for (i, position), value in zip(places, whitened.tolist(), strict=True):
        advantages[i][position] = value
