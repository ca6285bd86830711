"""How far a run is: made first, written by the training side, read by the rollout and the run's status.

Publisher ─ version ──────────────────▶ Progress ─▶ rollout: is there room? how old is this turn?
Pipeline ── step, samples that wait ──▶          └▶ status.json
"""

from __future__ import annotations

from collections.abc import Callable


class Progress:
    """The counters of a run; a rollout is offered it as `policy_version`, which it calls for the newest version.

    Args:
        staleness: updates between a version and the weights that are trained now, from the journal of versions;
            without one every update is a version.
        is_shared: all requests are served the same weights. With weights for each user a turn's user is not known
            before it is judged, so the turn counts as fresh; the queue checks its staleness when it is taken.

    Attributes:
        step: updates made.
        version: the newest version that engines serve.
        num_waiting: samples in the queue.
        num_training: samples of the update under way.
    """

    def __init__(self, staleness: Callable[[int], int] | None = None, *, is_shared: bool = True) -> None:
        self.step = 0
        self.version = 0
        self.num_waiting = 0
        self.num_training = 0
        self._staleness = staleness
        self._is_shared = is_shared

    @property
    def num_pending(self) -> int:
        """Samples that wait or train: what is sampled now is trained after them."""
        return self.num_waiting + self.num_training

    def __call__(self) -> int:
        """The version that new turns are compared with."""
        return self.version if self._is_shared else 0

    def staleness(self, version: int) -> int:
        """Updates between a version and the weights that are trained now."""
        if not self._is_shared:
            return 0
        return self.version - version if self._staleness is None else self._staleness(version)
