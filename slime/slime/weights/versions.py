"""The journal of policy versions: which number names which weights, and the staleness between two of them.

    weights to publish ─▶ next unused number ─ appended, synced ─▶ written, served        <save_dir>/versions.jsonl
    {"version": 8, "parent": 6, "step": 5, "checkpoint": 5, "adapter": ""}

A number is taken before any engine can serve it and never given again, so it names one set of weights whatever is
killed. After a crash the updates since the checkpoint are lost, but what they published was served and sampled from:

    0 ── 5 ── 6 ── 7            versions 6 and 7 grew from the checkpoint of update 5 and were lost with the trainer;
          ╲── 8 ── 9            the run resumed there, published those weights again as 8, and went on

The staleness of a sample is the number of updates between the version that made it and the weights being trained, by
way of the last checkpoint that both grew from: a token of version 7, trained on top of 9, is 2 + 1 = 3 updates old.
Checkpoints of before the journal published version n as the n-th update; {"inherited": n} stands for those.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from slime.errors import WeightsError
from slime.weights.directories import fsync, numbered

JOURNAL_FILE = "versions.jsonl"


@dataclass(frozen=True, slots=True)
class Version:
    """One number and what it names.

    >>> Version(version=8, parent=6, step=5, checkpoint=5)

    Attributes:
        parent: the version that these weights grew from; 0 is the model as it was given.
        step: updates made in them.
        checkpoint: step of the newest checkpoint on the way to them, 0 = none: all that a crash would leave.
        adapter: the user whose weights they are, with `--adapter-per user`; empty otherwise.
    """

    version: int
    parent: int
    step: int
    checkpoint: int
    adapter: str = ""


_GIVEN = Version(0, 0, 0, 0)


class Versions:
    """The numbers of a run; every method that writes returns after the disk has it.

    The weights that are trained now are a version without a number yet; `take` gives them one.

    Args:
        save_dir: where checkpoints are, and the journal beside them.
    """

    def __init__(self, save_dir: Path) -> None:
        self.path = save_dir / JOURNAL_FILE
        self._known: dict[int, Version] = {}
        self._inherited = 0
        self._now: dict[str, Version] = {}
        self._next: dict[str, dict[int, Version]] = {}  # of each ancestor of what is trained now, the next on the way

    def open(self, origin: Path | None = None) -> None:
        """Read the journal, or found it.

        Args:
            origin: where the checkpoint lies that a new journal goes on from; its own journal is taken over. Without
                one the numbers up to its newest checkpoint count as given, as they were before there was a journal.

        Raises:
            WeightsError: a line, other than one that a crash cut short, is no version.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            origin = origin or self.path.parent
            earlier, inherited = origin / JOURNAL_FILE, _newest_step(origin)
            if earlier.exists():
                partial = self.path.with_suffix(".partial")
                shutil.copyfile(earlier, partial)
                os.replace(partial, self.path)
            elif inherited:
                self._append({"inherited": inherited})
        self._known, self._inherited = self._read()
        self._now, self._next = {}, {}

    @property
    def newest(self) -> int:
        """The highest number that was ever given; 0 if none was."""
        return max(self._inherited, max(self._known, default=0))

    def resume(self, *, step: int, version: int | None = None, adapter: str = "") -> None:
        """What is trained now is the checkpoint of `step`, whose weights were last published as `version`.

        Args:
            version: None where the checkpoint does not say, being older than the journal.
        """
        if version is None:
            version = min(step, self._inherited)
        parent = version if self._is_known(version) else 0
        self._now[adapter] = Version(0, parent, step, step, adapter)
        following = self._next[adapter] = {}
        at = self._get(parent)
        while at.version:
            following[at.parent] = at
            at = self._get(at.parent)

    def trained(self, adapter: str = "") -> None:
        """One update more."""
        now = self._trained_now(adapter)
        self._now[adapter] = replace(now, step=now.step + 1)

    def saved(self, adapter: str = "") -> None:
        """A checkpoint holds all updates so far."""
        now = self._trained_now(adapter)
        self._now[adapter] = replace(now, checkpoint=now.step)

    def take(self, adapter: str = "", *, above: int = 0) -> Version:
        """The next number, for the weights as they are now; in the journal, durably, when this returns.

        Args:
            above: a number that is in use elsewhere; the next one is higher.
        """
        now = self._trained_now(adapter)
        taken = replace(now, version=max(self.newest, above) + 1)
        self._append(asdict(taken))
        self._known[taken.version] = taken
        self._next.setdefault(adapter, {})[now.parent] = taken
        self._now[adapter] = replace(now, parent=taken.version)
        return taken

    def staleness(self, version: int, adapter: str = "") -> int:
        """Updates between a version and what is trained now, through the last checkpoint that both grew from.

        A number that the journal does not hold, of another run's turns, counts as fresh.
        """
        if not self._is_known(version):
            return 0
        now, following = self._trained_now(adapter), self._next.get(adapter, {})
        found = at = self._get(version)
        below: Version | None = None
        while at.version != now.parent and at.version not in following:
            below, at = at, self._get(at.parent)
        common = min(at.step, now.step)
        if below is not None:
            common = max(at.step, min(below.checkpoint, following.get(at.version, now).checkpoint))
        return (found.step - common) + (now.step - common)

    def _is_known(self, version: int) -> bool:
        return version <= self._inherited or version in self._known

    def _get(self, version: int) -> Version:
        if version in self._known:
            return self._known[version]
        return Version(version, version - 1, version, version - 1) if version > 0 else _GIVEN

    def _trained_now(self, adapter: str) -> Version:
        return self._now.setdefault(adapter, Version(0, 0, 0, 0, adapter))

    def _append(self, entry: Mapping[str, Any]) -> None:
        is_new = not self.path.exists()
        with self.path.open("ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            fsync(self.path.parent)

    def _read(self) -> tuple[dict[int, Version], int]:
        if not self.path.exists():
            return {}, 0
        whole, _, torn = self.path.read_bytes().rpartition(b"\n")
        if torn:  # a kill cut it short: the number was not given out
            os.truncate(self.path, len(whole) + 1 if whole else 0)
        known: dict[int, Version] = {}
        inherited = 0
        for number, text in enumerate(whole.splitlines(), 1):
            try:
                entry = json.loads(text)
                if "inherited" in entry:
                    inherited = int(entry["inherited"])
                else:
                    version = Version(**entry)
                    known[version.version] = version
            except (ValueError, TypeError) as error:
                raise WeightsError(f"{self.path}:{number}: not a version: {error}; mend or move the file") from None
        return known, inherited


def _newest_step(save_dir: Path) -> int:
    """The highest step that a checkpoint is named for, also of a user's; 0 if there is none."""
    return max(
        (step for folder in (save_dir, *save_dir.glob("users/*")) for step in numbered(folder, "checkpoint")), default=0
    )
