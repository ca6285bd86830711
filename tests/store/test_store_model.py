"""The store against a model of it that fits on a page: random sequences of calls, reopening included."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from slime.errors import IllegalTransition, LeaseLost, StoreError
from slime.store import Store
from slime.types import Message, Turn, TurnKind, TurnState, Verdict
from stored_turns import build_turn

T = TypeVar("T")

OWNERS = st.sampled_from(["one", "two"])
KINDS = st.sampled_from([TurnKind.MAIN] * 4 + [*TurnKind])
VERDICTS = st.sampled_from([Verdict(1.0)] * 3 + [Verdict(-1.0, reason="no"), Verdict(0.0), Verdict(None, reason="out")])
LEASE_S = 10.0
MEMORY = "/dev/shm"
"""Where there is one, fsyncs cost nothing; what they are good for is another test's subject."""


@dataclasses.dataclass
class Expected:
    """What the model knows of a turn."""

    turn: Turn
    state: TurnState
    next_states: list[tuple[str | None, tuple[Message, ...]]]
    verdict: Verdict | None = None
    reason: str = ""
    owner: str | None = None
    until: float = 0.0
    step: int | None = None


class StoreMachine(RuleBasedStateMachine):
    turns: Bundle[str] = Bundle("turns")

    @initialize(target=turns)
    def open(self) -> MultipleResults[str]:
        """A store in which every kind of move is one call away: turns that are ready, claimed, judged and trained."""
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp(dir=MEMORY if os.path.isdir(MEMORY) else None))
        self.now = 100.0
        self.store = self.open_store()
        self.known: dict[str, Expected] = {}
        self.step = 0
        turn_ids = [f"t{number}" for number in range(5)]
        for _ in turn_ids:
            self.append_root(TurnKind.MAIN, TurnState.SERVED)
        for turn_id in turn_ids[:4]:
            self.attach(turn_id, 0)
        self.claim("one", 3)
        self.record_verdict(turn_ids[0], "one", Verdict(1.0))
        self.record_verdict(turn_ids[1], "one", Verdict(-1.0))
        self.mark_trained(turn_ids[:1])
        return multiple(*turn_ids)

    def open_store(self) -> Store:
        return Store.open(self.directory, clock=lambda: self.now)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.loop.close()
        shutil.rmtree(self.directory)

    def refused(self, work: Coroutine[Any, Any, object], error: type[StoreError]) -> None:
        with pytest.raises(error):
            self.run(work)

    # What enters.

    @rule(target=turns, kind=KINDS, state=st.sampled_from([TurnState.SERVED, TurnState.ABORTED]))
    def append_root(self, kind: TurnKind, state: TurnState) -> str:
        turn: Turn = build_turn(f"t{len(self.known)}", session_id=f"s{len(self.known)}", kind=kind, state=state)
        self.run(self.store.append(turn))
        self.known[turn.turn_id] = Expected(turn, state, [])
        return turn.turn_id

    @rule(target=turns, parent=turns, kind=KINDS, answers=st.sampled_from([True, True, False]), rewrites=st.booleans())
    def append_child(self, parent: str, kind: TurnKind, answers: bool, rewrites: bool) -> str:
        before = self.known[parent].turn
        turn: Turn = build_turn(f"t{len(self.known)}", parent=before, session_id=before.session_id, kind=kind)
        if rewrites:
            prompt_ids = (turn.prompt_ids[0], 99, *turn.prompt_ids[2:])
            turn = dataclasses.replace(turn, messages=turn.messages[1:], prompt_ids=prompt_ids)
        said = turn.messages[-1:]
        self.run(self.store.append(turn, next_state_of=(parent, said) if answers else None))
        self.known[turn.turn_id] = Expected(turn, TurnState.SERVED, [])
        if answers:
            self.expect_next_state(parent, turn.turn_id, said)
        return turn.turn_id

    @rule(turn_id=turns, number=st.integers(0, 1))
    def attach(self, turn_id: str, number: int) -> None:
        said: tuple[Message, ...] = ({"role": "user", "content": f"said {number}"},)
        self.run(self.store.attach(turn_id, said))
        self.expect_next_state(turn_id, None, said)

    def expect_next_state(self, turn_id: str, from_turn: str | None, said: tuple[Message, ...]) -> None:
        expected = self.known[turn_id]
        expected.next_states.append((from_turn, said))
        if expected.state is TurnState.SERVED and expected.turn.kind.is_trainable:
            expected.state = TurnState.READY

    @rule(turn_id=turns)
    def append_again(self, turn_id: str) -> None:
        self.run(self.store.append(self.known[turn_id].turn, next_state_of=(turn_id, ())))

    @rule(turn_id=turns)
    def append_other_under_its_id(self, turn_id: str) -> None:
        self.refused(self.store.append(dataclasses.replace(self.known[turn_id].turn, created_at=7.0)), StoreError)

    # Who works on it.

    @rule(owner=OWNERS, limit=st.integers(1, 5))
    def claim(self, owner: str, limit: int) -> None:
        for expected in self.known.values():
            if expected.state is TurnState.CLAIMED and expected.until <= self.now:
                expected.state, expected.owner = TurnState.READY, None
        free = [
            turn_id
            for turn_id, expected in self.known.items()
            if expected.state is TurnState.READY
            or (expected.state is TurnState.JUDGED and (expected.owner is None or expected.until <= self.now))
        ][:limit]
        claims = self.run(self.store.claim(limit, owner, LEASE_S))
        assert [claim.turn.turn_id for claim in claims] == free
        for turn_id, claim in zip(free, claims, strict=True):
            expected = self.known[turn_id]
            expected.owner, expected.until = owner, self.now + LEASE_S
            is_new = expected.state is TurnState.READY
            if is_new:
                expected.state = TurnState.CLAIMED
            assert claim.verdict == (None if is_new else expected.verdict), "a turn to be judged again has none"
            assert claim.turn == self.as_stored(expected)

    @rule(seconds=st.sampled_from([4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(turn_id=turns, owner=OWNERS)
    def renew(self, turn_id: str, owner: str) -> None:
        expected = self.known[turn_id]
        if expected.owner == owner:
            self.run(self.store.renew([turn_id], owner, LEASE_S))
            expected.until = self.now + LEASE_S
        else:
            self.refused(self.store.renew([turn_id], owner, LEASE_S), LeaseLost)

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        held = [expected for expected in self.known.values() if expected.owner == owner]
        assert self.run(self.store.release(owner)) == len(held)
        for expected in held:
            expected.owner = None
            if expected.state is TurnState.CLAIMED:
                expected.state = TurnState.READY

    # What became of it.

    @rule(turn_id=turns, owner=OWNERS, verdict=VERDICTS)
    def record_verdict(self, turn_id: str, owner: str, verdict: Verdict) -> None:
        expected = self.known[turn_id]
        work = self.store.record_verdict(turn_id, verdict, owner)
        if expected.state is TurnState.CLAIMED and expected.owner == owner:
            self.run(work)
            expected.verdict = verdict
            if verdict.is_effective:
                expected.state = TurnState.JUDGED
            else:
                expected.state, expected.owner = TurnState.EXCLUDED, None
                expected.reason = "score 0" if verdict.is_judged else "unjudged: out"
        elif expected.state is not TurnState.CLAIMED and expected.verdict == verdict:
            self.run(work)
        else:
            self.refused(work, StoreError)

    def in_state(self, *states: TurnState) -> list[str]:
        return [turn_id for turn_id, expected in self.known.items() if expected.state in states]

    @precondition(lambda self: self.in_state(TurnState.CLAIMED))
    @rule(data=st.data(), verdict=VERDICTS)
    def judge_a_claimed_turn(self, data: st.DataObject, verdict: Verdict) -> None:
        turn_id = data.draw(st.sampled_from(self.in_state(TurnState.CLAIMED)))
        self.record_verdict(turn_id, self.known[turn_id].owner or "", verdict)

    @precondition(lambda self: self.in_state(TurnState.JUDGED))
    @rule(data=st.data())
    def train_judged_turns(self, data: st.DataObject) -> None:
        judged = self.in_state(TurnState.JUDGED)
        self.mark_trained(data.draw(st.lists(st.sampled_from(judged), min_size=1, unique=True)))

    @rule(turn_id=turns)
    def exclude(self, turn_id: str) -> None:
        expected = self.known[turn_id]
        work = self.store.exclude([turn_id], "stale")
        if expected.state in (TurnState.TRAINED, TurnState.ABORTED):
            return self.refused(work, IllegalTransition)
        self.run(work)
        if expected.state is not TurnState.EXCLUDED:
            expected.state, expected.reason, expected.owner = TurnState.EXCLUDED, "stale", None

    @rule(chosen=st.lists(turns, max_size=3, unique=True))
    def mark_trained(self, chosen: list[str]) -> None:
        self.step += 1
        work = self.store.mark_trained(chosen, self.step)
        if any(self.known[turn_id].state is not TurnState.JUDGED for turn_id in chosen):
            return self.refused(work, IllegalTransition)
        self.run(work)
        for turn_id in chosen:
            expected = self.known[turn_id]
            expected.state, expected.step, expected.owner = TurnState.TRAINED, self.step, None
        assert set(self.run(self.store.trained_by(self.step))) == set(chosen)

    @rule(back=st.integers(0, 3))
    def rewind(self, back: int) -> None:
        self.step = max(0, self.step - back)
        undone = [
            expected for expected in self.known.values() if expected.step is not None and expected.step > self.step
        ]
        assert self.run(self.store.rewind(self.step)) == len(undone)
        for expected in undone:
            expected.state, expected.step = TurnState.JUDGED, None

    @rule()
    def restart(self) -> None:
        self.run(self.store.close())
        self.store = self.open_store()

    # What must hold.

    def as_stored(self, expected: Expected) -> Turn:
        return dataclasses.replace(
            expected.turn,
            state=expected.state,
            next_state=expected.next_states[0][1] if expected.next_states else None,
            reason=expected.reason if expected.state is TurnState.EXCLUDED else "",
        )

    @invariant()
    def store_agrees_with_the_model(self) -> None:
        counts = self.run(self.store.counts())
        states = [expected.state for expected in self.known.values()]
        assert counts == {state: states.count(state) for state in TurnState}
        assert self.run(self.store.recent(1000)) == [self.as_stored(expected) for expected in self.known.values()]
        for turn_id, expected in list(self.known.items())[-3:]:
            assert self.run(self.store.next_states(turn_id)) == expected.next_states
            assert self.run(self.store.verdict(turn_id)) == expected.verdict
            assert self.run(self.store.trained_at(turn_id)) == expected.step
            assert self.run(self.store.history(turn_id))[-1].target is expected.state


StoreMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestStore = StoreMachine.TestCase
