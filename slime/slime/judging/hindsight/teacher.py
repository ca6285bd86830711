"""The teacher: scores the tokens that the policy sampled under a prompt that also contains the hint.

    Turn, hint ─▶ messages with the hint ─ ChatFormat ─▶ prompt ids ┐
                  the reply's ids, as they were sampled ────────────┴▶ engine.score ─▶ ℓ_T of each ─▶ TeacherScores
                  without the hint, where k ids a token are wanted ──▶ policy.score ─▶ its own k likeliest ids

Nothing is tokenised twice and nothing is padded: there is one log-prob for every sampled token, the first included, or
`Unscored` with the reason. Log-probs are of the teacher's own distribution, at temperature 1.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slime.chat import ChatFormat
from slime.config.sections import TeacherConfig
from slime.errors import EngineError, RenderError
from slime.judging.retry import with_retries
from slime.protocols import Engine, TokenScores
from slime.types import Message, Turn

HINT_MARKER = "\n\n[user's hint / instruction]\n"
"""Stands between the last thing the user said and the hint."""

NO_ID = -1
"""Stands in a support that has fewer than k ids."""

_K_TO_CHOOSE_BY = 4
"""Ids a token by which hints are compared where no k is asked for; the paper finds no gain above it."""

_LEAST_BREADTH = 64
"""Ids a token whose log-probs are fetched, at least: one model's top ids are looked up among the other's."""


@dataclass(frozen=True, slots=True)
class TopIds:
    """For each of T tokens a support of k ids, with both models' log-probs of them.

    >>> TopIds(((11, 7), (4, NO_ID)), ((-0.1, -3.0), (-0.2, 0.0)), ((-0.9, -0.8), (-0.2, 0.0)))

    Attributes:
        ids: [T][k]; `NO_ID` where the support has fewer.
        teacher_logprobs, policy_logprobs: [T][k], 0 beside `NO_ID`. Of ids outside what a model's engine told, an
            equal share of all that the ids told leave, and no more than that of the last id told.
    """

    ids: tuple[tuple[int, ...], ...]
    teacher_logprobs: tuple[tuple[float, ...], ...]
    policy_logprobs: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class TeacherScores:
    """The teacher's log-probs of a reply of T tokens.

    >>> TeacherScores("Keep it short.", (-0.2, -4.1), version=3)

    Attributes:
        hint: what the teacher had read; at token-optimal selection the hint of most tokens.
        logprobs: [T] of the tokens that were sampled.
        version: policy version of the teacher's weights.
        overlap: mean share of the k ids that the supports of teacher and policy have in common; 0 where k is.
    """

    hint: str
    logprobs: tuple[float, ...]
    version: int
    top: TopIds | None = None
    overlap: float = 0.0


@dataclass(frozen=True, slots=True)
class Unscored:
    """Why a reply was not scored: `Unscored("EngineRejected: longer than the context")`."""

    reason: str


@dataclass(frozen=True)
class Teacher:
    """Scores replies under their hints.

    Args:
        engine: serves the teacher; its tokenizer is the policy's.
        policy: serves the policy; called only where k ids a token are wanted.
        adapter_of: the policy's adapter that answers a source's turns; empty: the base.
        is_policy: whether the teacher is that policy, adapter and all.
    """

    engine: Engine
    policy: Engine
    chat: ChatFormat
    config: TeacherConfig
    adapter_of: Callable[[str], str] = lambda source: ""
    is_policy: bool = False

    @property
    def _chooses(self) -> bool:
        return self.config.hint_selection in ("token_optimal", "sequence_optimal")

    @property
    def _k(self) -> int:
        return self.config.teacher_top_k or (_K_TO_CHOOSE_BY if self._chooses else 0)

    async def teach(self, turn: Turn, hints: Sequence[str], prior: Turn | None = None) -> TeacherScores | Unscored:
        """Scores under the best of `hints` by the configured selection; under the first where that needs no scores.

        Args:
            hints: candidates, the preferred one first.
            prior: the turn before, whose ids the prompt was fed with.
        """
        if not hints:
            return Unscored("there is no hint")
        if not self._chooses:
            hints = hints[:1]
        try:
            async with asyncio.timeout(self.config.teacher_timeout_s):
                scores = await asyncio.gather(*(self._under(hint, turn, prior) for hint in hints))
                own = await self._own(turn) if self._k else None
        except TimeoutError:
            return Unscored(f"the teacher gave no answer within {self.config.teacher_timeout_s:g} s")
        except (EngineError, RenderError) as error:
            return Unscored(f"{type(error).__name__}: {error}")
        if own is None:
            return TeacherScores(hints[0], scores[0].logprobs, scores[0].version)
        return self._choose(hints, scores, own)

    async def _under(self, hint: str, turn: Turn, prior: Turn | None) -> TokenScores:
        hinted = with_hint(turn.messages, hint)
        prompt_ids = self.chat.render(hinted, turn.tools, prior, options=turn.template_options)
        adapter = self.adapter_of(turn.source) if self.is_policy else ""
        return await self._score(self.engine, prompt_ids, turn, adapter)

    async def _own(self, turn: Turn) -> TokenScores:
        """What the policy thinks of its reply, without a hint."""
        return await self._score(self.policy, turn.prompt_ids, turn, self.adapter_of(turn.source))

    async def _score(self, engine: Engine, prompt_ids: tuple[int, ...], turn: Turn, adapter: str) -> TokenScores:
        """The reply's tokens after a prompt, each of them or an error."""
        reply = turn.completion.token_ids
        breadth = max(_LEAST_BREADTH, 4 * self._k) if self._k else 0
        token_ids, start = (*prompt_ids, *reply), len(prompt_ids)
        scores = await with_retries(lambda: engine.score(token_ids, start, breadth, adapter=adapter))
        if len(scores.logprobs) != len(reply):
            raise EngineError(f"{len(scores.logprobs)} log-probs came for a reply of {len(reply)} tokens")
        if not all(math.isfinite(value) for value in scores.logprobs):
            raise EngineError("a log-prob is not finite")
        if breadth and not len(scores.top_ids) == len(scores.top_logprobs) == len(reply):
            raise EngineError(f"{len(scores.top_ids)} rows of top ids came for a reply of {len(reply)} tokens")
        return scores

    def _choose(self, hints: Sequence[str], scores: Sequence[TokenScores], own: TokenScores) -> TeacherScores:
        """The hint whose teacher shares most top ids with the policy, for the whole reply or token by token."""
        k, num_tokens = self._k, len(own.logprobs)
        overlaps = [
            [len({*top[:k]} & {*mine[:k]}) / k for top, mine in zip(s.top_ids, own.top_ids, strict=True)]
            for s in scores
        ]
        by_preference = range(len(hints))
        if self.config.hint_selection == "token_optimal":
            chosen = [max(by_preference, key=lambda i: overlaps[i][t]) for t in range(num_tokens)]
        else:
            chosen = [max(by_preference, key=lambda i: sum(overlaps[i]))] * num_tokens
        rows = [
            support_row(
                dict(zip(scores[i].top_ids[t], scores[i].top_logprobs[t], strict=True)),
                dict(zip(own.top_ids[t], own.top_logprobs[t], strict=True)),
                k,
                self.config.teacher_support,
            )
            for t, i in enumerate(chosen)
        ]
        ids, teacher, policy = zip(*rows, strict=True)
        return TeacherScores(
            hint=hints[max(by_preference, key=chosen.count)],
            logprobs=tuple(scores[i].logprobs[t] for t, i in enumerate(chosen)),
            version=scores[0].version,
            top=TopIds(ids, teacher, policy),
            overlap=sum(overlaps[i][t] for t, i in enumerate(chosen)) / num_tokens,
        )


Row = tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]
"""The support of one token: k ids, the teacher's log-probs of them, and the policy's."""


def support_row(teacher: Mapping[int, float], policy: Mapping[int, float], k: int, kind: str) -> Row:
    """The support of a token.

    Args:
        teacher, policy: each one's likeliest ids, likeliest first, and their log-probs.
        kind: `teacher` or `student`, whose k likeliest ids it is; `overlap`: the ids that are among both.
    """
    theirs, ours = list(teacher)[:k], list(policy)[:k]
    ids = {"teacher": theirs, "student": ours, "overlap": [token_id for token_id in ours if token_id in theirs]}[kind]
    missing = k - len(ids)
    return (
        (*ids, *[NO_ID] * missing),
        (*logprobs_of(ids, teacher), *[0.0] * missing),
        (*logprobs_of(ids, policy), *[0.0] * missing),
    )


def logprobs_of(wanted: Sequence[int], known: Mapping[int, float]) -> Iterator[float]:
    """The log-prob of each id; those that are not among the known share what is left, so that the sum stays below 1."""
    num_unknown = sum(token_id not in known for token_id in wanted)
    left = max(1.0 - math.fsum(map(math.exp, known.values())), 1e-9)
    share = min(math.log(left / max(1, num_unknown)), *known.values())
    return (known.get(token_id, share) for token_id in wanted)


def with_hint(messages: Sequence[Message], hint: str) -> tuple[Message, ...]:
    """The messages with a hint at the end of the last user message, or of the last message if no user spoke.

    >>> with_hint([{"role": "user", "content": "Hi"}], "Keep it short.")[0]["content"]
    "Hi\\n\\n[user's hint / instruction]\\nKeep it short."
    """
    users = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    place = users[-1] if users else len(messages) - 1
    content, addition = messages[place].get("content"), f"{HINT_MARKER}{hint}"
    hinted = [*content, {"type": "text", "text": addition}] if isinstance(content, list) else (content or "") + addition
    return (*messages[:place], {**messages[place], "content": hinted}, *messages[place + 1 :])
