"""Stitching: turns of a session share a sample as long as a prompt extends what was fed before, token by token.

    turn 1   prompt p1        reply r1
    turn 2   prompt p1 r1 u2  reply r2      fed exactly on from turn 1 ─▶  [p1 r1 u2 r2]   trains  r1, r2
    turn 3   prompt q3        reply r3      history was rewritten      ─▶  [q3 r3]         trains  r3

Only ids decide, never text. What stands in a prompt is never trained, though it may repeat a reply of
ours word for word; every reply is trained once, from the ids that were fed before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime.fields import field as declaration
from slime.types import Sample, Turn


@dataclass(frozen=True, slots=True)
class ScoredTurn:
    """A turn to be trained and what its verdict says.

    Attributes:
        streams: further token-level fields of the *reply*, e.g. `{"teacher_logprobs": (-0.2, -0.4)}`.
    """

    turn: Turn
    score: float
    streams: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if reason := why_not_trained(self.turn):
            raise ValueError(f"turn {self.turn.turn_id} cannot be trained: {reason}")
        for name, stream in self.streams.items():
            if len(stream) != len(self.turn.completion.token_ids):
                raise ValueError(f"turn {self.turn.turn_id}: stream {name!r} and the reply differ in length")


def why_not_trained(turn: Turn) -> str:
    """Why a turn, whatever its score, is no training material; empty if it is."""
    if not turn.kind.is_trainable:
        return f"it is a {turn.kind} turn"
    if not turn.completion.token_ids:
        return "its reply is empty"
    if turn.completion.finish_reason == "abort":
        return "its reply was cut off"
    if not turn.sampling.is_reproducible:
        return "it was not sampled from the plain distribution (temperature 0, truncation or a penalty)"
    return ""


def stitch(scored_turns: Sequence[ScoredTurn], *, source: str = "") -> tuple[Sample, ...]:
    """The samples of one session.

    Args:
        scored_turns: the turns to train, of one session, parents before children. Turns that are left out
            (unjudged, say) stay context wherever a later prompt repeats them.
        source: whose session it is; baselines are kept per source.

    Returns:
        Samples with loss_mask, rollout_logprobs, policy_versions, rewards and turn_index streams, and any
        given with the turns; in `values` their temperature and their mean score as `reward`.
    """
    chains: list[list[ScoredTurn]] = []
    for scored in scored_turns:
        extended = [chain for chain in chains if _extends(scored.turn, chain[-1].turn)]
        if extended:
            max(extended, key=_length).append(scored)
        else:
            chains.append([scored])
    return tuple(_sample(chain, source) for chain in chains)


def _length(chain: Sequence[ScoredTurn]) -> int:
    last = chain[-1].turn
    return len(last.prompt_ids) + len(last.completion.token_ids)


def _extends(turn: Turn, earlier: Turn) -> bool:
    """Whether `turn` was fed everything that `earlier` was fed and sampled; its temperature must be the same too,
    for a sample has one."""
    fed, replied = earlier.prompt_ids, earlier.completion.token_ids
    return (
        turn.prompt_ids[: len(fed)] == fed
        and turn.prompt_ids[len(fed) : len(fed) + len(replied)] == replied
        and turn.sampling.temperature == earlier.sampling.temperature
    )


def _sample(chain: Sequence[ScoredTurn], source: str) -> Sample:
    names = ["loss_mask", "rollout_logprobs", "policy_versions", "rewards", "turn_index"]
    names += sorted({name for scored in chain for name in scored.streams} - set(names))
    fill = {name: declaration(name).filler for name in names}
    token_ids: list[int] = []
    streams: dict[str, list[Any]] = {name: [] for name in names}
    for index, scored in enumerate(chain):
        turn, reply = scored.turn, scored.turn.completion
        fed = turn.prompt_ids[len(token_ids) :]
        of_reply: dict[str, Sequence[Any]] = {
            "loss_mask": (1,) * len(reply.token_ids),
            "rollout_logprobs": reply.logprobs,
            "policy_versions": reply.policy_versions,
            "rewards": (scored.score,) * len(reply.token_ids),
            "turn_index": (index,) * len(reply.token_ids),
            **scored.streams,
        }
        token_ids += [*fed, *reply.token_ids]
        for name in names:
            streams[name] += [fill[name]] * len(fed)
            streams[name] += of_reply.get(name, (fill[name],) * len(reply.token_ids))
    first = chain[0].turn
    return Sample(
        token_ids=tuple(token_ids),
        streams={name: tuple(stream) for name, stream in streams.items()},
        values={
            "reward": sum(scored.score for scored in chain) / len(chain),
            "temperature": first.sampling.temperature,
        },
        turn_ids=tuple(scored.turn.turn_id for scored in chain),
        trajectory_id=first.session_id,
        source=source,
        ancestors=tuple(_ancestors(scored.turn) for scored in chain),
    )


def _ancestors(turn: Turn) -> tuple[str, ...] | None:
    """As the store said; else its parent by itself, where it has one."""
    return turn.ancestors if turn.ancestors is not None or turn.parent_id is None else (turn.parent_id,)
