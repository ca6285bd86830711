"""The journal of versions: which number names which weights, for ever, and how far two of them are apart.

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slime.errors import WeightsError

JOURNAL_FILE = "versions.jsonl"


@dataclass(frozen=True, slots=True)
class Version:
    """One number and what it names.

    >>> Version(version=8, parent=6, step=5, checkpoint=5)

    Attributes:
        parent: the version that these weights grew from; 0 is the model as it was given.
        step: updates made in them.
        checkpoint: step of the newest checkpoint on the way to them, 0 = none: all that a crash would leave.
        adapter: whose they are where each user has weights of their own; empty otherwise.
    """

    version: int
    parent: int
    step: int
    checkpoint: int
    adapter: str = ""


@dataclass(slots=True)
class _Line:
    """Where the weights stand that are trained now: on top of `version`."""

    version: int = 0
    step: int = 0
    checkpoint: int = 0


_GIVEN = Version(0, 0, 0, 0)


class Versions:
    """The numbers of a run; every method that writes returns after the disk has it.

    Args:
        save_dir: where checkpoints are, and the journal beside them.
    """

    def __init__(self, save_dir: Path) -> None:
        self.path = save_dir / JOURNAL_FILE
        self._known: dict[int, Version] = {}
        self._inherited = 0
        self._lines: dict[str, _Line] = {}
        self._meeting: dict[str, dict[int, int]] = {}

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
        self._lines, self._meeting = {}, {}

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
        is_known = version in self._known or version <= self._inherited
        self._lines[adapter] = _Line(version if is_known else 0, step, step)
        self._meeting[adapter] = {}

    def trained(self, adapter: str = "") -> None:
        """One update more."""
        self._line(adapter).step += 1

    def saved(self, adapter: str = "") -> None:
        """A checkpoint holds all updates so far."""
        line = self._line(adapter)
        line.checkpoint = line.step

    def take(self, adapter: str = "", *, above: int = 0) -> Version:
        """The next number, for the weights as they are now; in the journal, durably, when this returns.

        Args:
            above: a number that is in use elsewhere; the next one is higher.
        """
        line = self._line(adapter)
        taken = Version(max(self.newest, above) + 1, line.version, line.step, line.checkpoint, adapter)
        self._append(asdict(taken))
        self._known[taken.version] = taken
        self._meeting.setdefault(adapter, {})[taken.version] = taken.step
        line.version = taken.version
        return taken

    def current(self, adapter: str = "") -> int:
        """The newest version of what is trained now."""
        return self._line(adapter).version

    def step(self, adapter: str = "") -> int:
        """Updates in what is trained now."""
        return self._line(adapter).step

    def staleness(self, version: int, adapter: str = "") -> int:
        """Updates between a version and what is trained now, through the last checkpoint that both grew from.

        A number that the journal does not hold, of another run's turns, counts as fresh.
        """
        line = self._line(adapter)
        if version > self._inherited and version not in self._known:
            return line.step if version <= 0 else 0
        meeting = self._meeting.setdefault(adapter, {})
        if version not in meeting:
            meeting[version] = self._common_step(version, line)
        common = meeting[version]
        return (self._get(version).step - common) + (line.step - common)

    def _common_step(self, version: int, line: _Line) -> int:
        """The step up to which a version and what is trained now have the same updates."""
        children: dict[int, Version | _Line] = {line.version: line}  # of each ancestor of `line`, the next on the way
        at = self._get(line.version)
        while at.version:
            children[at.parent] = at
            at = self._get(at.parent)
        below: Version | None = None
        at = self._get(version)
        while at.version not in children:
            below, at = at, self._get(at.parent)
        if below is None:
            return min(at.step, line.step)
        return max(at.step, min(below.checkpoint, children[at.version].checkpoint))

    def _get(self, version: int) -> Version:
        if version <= 0:
            return _GIVEN
        if version <= self._inherited and version not in self._known:
            return Version(version, version - 1, version, version - 1)
        return self._known[version]

    def _line(self, adapter: str) -> _Line:
        return self._lines.setdefault(adapter, _Line())

    def _append(self, entry: Mapping[str, Any]) -> None:
        is_new = not self.path.exists()
        with self.path.open("ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            directory = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

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
    found = (*save_dir.glob("checkpoint-*"), *save_dir.glob("users/*/checkpoint-*"))
    steps = (path.name.rpartition("-")[2] for path in found)
    return max((int(step) for step in steps if step.isdigit()), default=0)
