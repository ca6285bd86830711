"""What a run says of itself while it runs: its status file, and why it learns nothing when it learns nothing.

    store: turns excluded, by reason ─┐
    rollout: groups left out ─────────┼─▶ RunWatch ─▶ status.json, every few seconds and after every update
    queue: stale samples ─────────────┘          └─▶ nothing trained for long, and many lost: one line of why

Samples that wait are no stall: a batch may take its time to fill. Samples that are lost, one after the other, or turns
that wait for a judge that never answers, are.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slime.config.sections import RolloutConfig
from slime.errors import RunStalled
from slime.progress import Progress
from slime.status import State, Status, write_status
from slime.store import Store
from slime.types import Batch, TurnState

log = logging.getLogger(__name__)

WAITING_FOR_JUDGE = "waiting for the judge"
STALE = "stale"
_STATUS_EVERY_S = 5.0

_ADVICE: Mapping[str, str] = {
    STALE: "what is sampled is older than --max-staleness allows: do engines serve what is published?",
    "unjudged": "the judge gives no verdict: see its lines in the log",
    WAITING_FOR_JUDGE: "the judge does not answer: see its lines in the log",
    "score 0": "the judge says nothing of any turn: it scores them all 0",
    "filtered": "--dynamic-sampling-filter-path keeps nothing",
    "update skipped": "the trainer skips every update: see the reason in its lines",
}


@dataclass(eq=False)
class RunWatch:
    """Counts what becomes of samples, writes it down, and notices when nothing is trained of them.

    Attributes:
        run_dir: where the status is written.
        progress: how far the run is; while an update is made nothing stalls, however long it takes.
        left_out: samples that the rollout itself dropped so far, by reason; turns are counted in the store.
        ends_run: raise `RunStalled` where nothing is trained; otherwise say so and go on.
    """

    store: Store
    config: RolloutConfig
    run_dir: Path
    progress: Progress
    left_out: Callable[[], Mapping[str, int]] = dict
    ends_run: bool = False

    def __post_init__(self) -> None:
        self._of_turns: Counter[str] = Counter()
        self._without_turn: Counter[str] = Counter()
        self._returned = 0
        self._seen: int | None = None
        self._since = time.monotonic()
        self._before: Counter[str] | None = None
        self._num_trained = 0

    async def run(self) -> None:
        """Look every few seconds, for ever. Raises RunStalled if that ends the run."""
        is_told = False
        while True:
            reason = await self.look()
            self.say("stalled" if reason else "running", reason)
            if reason and self.ends_run:
                raise RunStalled(reason)
            if reason and not is_told:
                log.error("%s", reason)
            is_told = bool(reason)
            await asyncio.sleep(min(self.config.stall_after_s / 4, _STATUS_EVERY_S))

    def say(self, state: State, reason: str = "") -> None:
        """Write the status."""
        dropped, progress = self.totals(), self.progress
        status = Status(
            state,
            step=progress.step,
            version=progress.version,
            reason=reason,
            made=self._num_trained + progress.num_waiting + dropped.total(),
            trained=self._num_trained,
            dropped=dict(dropped.most_common()),
            waiting=progress.num_waiting,
        )
        write_status(self.run_dir, status)

    def trained(self, num_samples: int) -> None:
        """An update was made; what is lost from now on counts anew."""
        self._num_trained += num_samples
        self._since = time.monotonic()
        self._before = None
        self._returned = 0

    def dropped(self, reason: str, batch: Batch) -> None:
        """Samples were dropped; those of turns are counted in the store."""
        self._without_turn[reason] += sum(not sample.turn_ids for sample in batch.samples)

    def totals(self) -> Counter[str]:
        """Samples dropped since the start, by reason, as of the last look."""
        return self._of_turns + self._without_turn + Counter(self.left_out())

    async def look(self) -> str:
        """Bring the counts up to date. Returns why nothing is trained, in one line; empty while all is well."""
        found = await self.store.left_out(self._seen)
        self._seen = found.seen
        self._of_turns.update(found.excluded)
        self._returned += found.returned
        if self._before is None:
            self._before = self.totals()
        idle_s = time.monotonic() - self._since
        if idle_s < self.config.stall_after_s or self.progress.num_training:
            return ""
        lost = self.totals() - self._before
        if self._returned:
            lost[WAITING_FOR_JUDGE] = (await self.store.counts())[TurnState.READY]
        return _line(lost, idle_s) if lost.total() >= self.config.stall_samples else ""


def _line(lost: Counter[str], idle_s: float) -> str:
    """`nothing trained for 600 s: 872 of 880 samples are lost: stale; …`."""
    cause, number = lost.most_common(1)[0]
    others = ", ".join(f"{reason}={count}" for reason, count in lost.most_common())
    advice = _ADVICE.get(cause, "see the reason")
    return f"nothing trained for {idle_s:.0f} s: {number} of {lost.total()} samples are {cause}: {advice} ({others})"
