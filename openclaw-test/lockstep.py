"""Runs users and trainer in lock-step: a round starts only after the previous one has been trained on.

    round of sessions ─▶ LockStep ─▶ all turns judged? fewer samples left than one update needs? ─▶ next round

Otherwise the number of sessions that a method needs would depend on the machine's training speed. Server, store, judge
and trainer run unmodified: the wait happens outside them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from openclaw_test.training_run import TrainingRun
from slime.errors import TrainerError
from slime.store import Store
from slime.types import TurnState

_POLL_S = 0.05
_SETTLE_S = 300.0
_FAR_BACK = 400
"""Recent turns searched for those that wait for an update."""


class LockStep:
    """A `settle` callback for the rounds of one phase; the phase starts on construction.

    Args:
        store: the run's store, opened for reading.
        batch_size: effective samples per update.
        updates: of this phase, which ends after the last of them.
        of_run: updates of the whole run.
        is_per_user: each user trains an adapter, and an update takes samples of one user.
    """

    def __init__(
        self,
        run: TrainingRun,
        store: Store,
        batch_size: int,
        *,
        updates: int,
        of_run: int,
        is_per_user: bool = False,
    ) -> None:
        self._run = run
        self._store = store
        self._batch_size = batch_size
        self._last_step = run.step + updates
        self._end_of_run = of_run
        self._is_per_user = is_per_user

    async def __call__(self) -> bool:
        """Wait until the run has caught up; False when the phase has made its updates.

        Raises:
            TrainerError: the run ended, or did not catch up within five minutes.
        """
        deadline = time.monotonic() + _SETTLE_S
        while not await self._has_caught_up():
            self._run.check()
            if time.monotonic() > deadline:
                raise TrainerError(f"the run did not catch up within {_SETTLE_S:g} s; see {self._run.run_dir / 'logs'}")
            await asyncio.sleep(_POLL_S)
        return self._run.step < self._last_step

    async def _has_caught_up(self) -> bool:
        if self._run.step >= self._end_of_run:  # no further update follows
            return True
        counts = await self._store.counts()
        unjudged = counts.get(TurnState.READY, 0) + counts.get(TurnState.CLAIMED, 0)
        if unjudged or counts.get(TurnState.JUDGED, 0) < self._batch_size:
            return not unjudged
        return self._is_per_user and await self._most_of_one_user() < self._batch_size

    async def _most_of_one_user(self) -> int:
        """The largest number of judged turns that wait for an update of one user."""
        waiting: Counter[str] = Counter()
        for turn in await self._store.recent(_FAR_BACK):
            if turn.state is TurnState.JUDGED:
                waiting[turn.source] += 1
        return max(waiting.values(), default=0)
