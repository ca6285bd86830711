"""Users and trainer in step: nobody starts a session before what was said in the last one has been learned from.

    round of sessions ─▶ LockStep ─▶ all of it judged? fewer samples left than an update takes? ─▶ next round

Without it, how many sessions a method needs would be a matter of how fast the machine trains. The loops themselves are
those of any run: server, store, judge and trainer know nothing of being waited for.
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
"""Turns among which those stand that wait for an update."""


class LockStep:
    """A `settle` for the rounds of one phase, which begins now.

    Args:
        store: the run's, opened for reading.
        batch_size: effective samples of one update.
        updates: of this phase; with the last of them it ends.
        of_run: updates with which the run ends.
        is_per_user: every user trains an adapter, and an update takes the samples of one of them.
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
        """Wait until the run has caught up; False when the phase has had its updates.

        Raises:
            TrainerError: the run ended, or did not catch up in five minutes.
        """
        deadline = time.monotonic() + _SETTLE_S
        while not await self._has_caught_up():
            self._run.check()
            if time.monotonic() > deadline:
                raise TrainerError(f"the run did not catch up in {_SETTLE_S:g} s; see {self._run.run_dir / 'logs'}")
            await asyncio.sleep(_POLL_S)
        return self._run.step < self._last_step

    async def _has_caught_up(self) -> bool:
        if self._run.step >= self._end_of_run:  # no further update is to come, whatever waits
            return True
        counts = await self._store.counts()
        unjudged = counts.get(TurnState.READY, 0) + counts.get(TurnState.CLAIMED, 0)
        if unjudged or counts.get(TurnState.JUDGED, 0) < self._batch_size:
            return not unjudged
        return self._is_per_user and await self._most_of_one_user() < self._batch_size

    async def _most_of_one_user(self) -> int:
        """How many judged turns wait for the update of whoever has most of them."""
        waiting: Counter[str] = Counter()
        for turn in await self._store.recent(_FAR_BACK):
            if turn.state is TurnState.JUDGED:
                waiting[turn.source] += 1
        return max(waiting.values(), default=0)
