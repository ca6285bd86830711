"""The journal of versions: numbers that are never given twice, and how far two of them are apart."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from slime.errors import WeightsError
from slime.weights.versions import JOURNAL_FILE, Version, Versions


def opened(folder: Path, **resume: int) -> Versions:
    versions = Versions(folder)
    versions.open()
    if resume:
        versions.resume(**resume)
    return versions


def updated(versions: Versions, number: int = 1) -> int:
    """So many updates, each published; the last number."""
    for _ in range(number):
        versions.trained()
        taken = versions.take()
    return taken.version


def test_a_number_is_on_the_disk_before_anybody_has_it_and_is_never_given_again(tmp_path: Path):
    versions = opened(tmp_path)
    assert [updated(versions) for _ in range(3)] == [1, 2, 3]
    lines = [json.loads(line) for line in (tmp_path / JOURNAL_FILE).read_text().splitlines()]
    assert lines[-1] == {"version": 3, "parent": 2, "step": 3, "checkpoint": 0, "adapter": ""}
    again = opened(tmp_path, step=0, version=0)
    assert again.newest == 3
    assert again.take() == Version(4, parent=0, step=0, checkpoint=0)


def test_a_line_that_a_kill_cut_short_was_not_given_out(tmp_path: Path):
    updated(opened(tmp_path), 2)
    with (tmp_path / JOURNAL_FILE).open("ab") as file:
        file.write(b'{"version": 3, "par')
    again = opened(tmp_path, step=0, version=0)
    assert again.take().version == 3
    assert opened(tmp_path).newest == 3, "the next line stands on its own"


def test_a_journal_that_is_none_is_refused_by_file_and_line(tmp_path: Path):
    (tmp_path / JOURNAL_FILE).write_text('{"version": 1, "step": 1}\n')
    with pytest.raises(WeightsError, match=r"versions\.jsonl:1: not a version"):
        opened(tmp_path)


def test_staleness_counts_updates_by_way_of_the_last_common_checkpoint(tmp_path: Path):
    versions = opened(tmp_path)
    updated(versions, 5)
    versions.saved()
    assert updated(versions, 2) == 7
    versions = opened(tmp_path, step=5, version=5)
    assert versions.take() == Version(8, parent=5, step=5, checkpoint=5)
    assert [versions.staleness(v) for v in (5, 6, 7, 8)] == [0, 1, 2, 0]
    assert updated(versions) == 9
    assert [versions.staleness(v) for v in (0, 4, 5, 6, 7, 8, 9)] == [6, 2, 1, 2, 3, 1, 0]


def test_a_checkpoint_between_two_publications_is_where_they_part(tmp_path: Path):
    """Published at updates 10 and 20, saved at 15: the crash costs 5 updates of version 2, not 10."""
    versions = opened(tmp_path)
    for step in range(1, 21):
        versions.trained()
        if step % 10 == 0:
            versions.take()
        if step == 15:
            versions.saved()
    versions = opened(tmp_path, step=15, version=1)
    versions.take()
    assert [versions.staleness(v) for v in (1, 2, 3)] == [5, 5, 0]
    versions.trained()
    assert [versions.staleness(v) for v in (1, 2, 3)] == [6, 6, 1]


@pytest.mark.parametrize("seed", range(20))
def test_staleness_is_the_distance_in_the_tree_of_updates(tmp_path: Path, seed: int):
    """Random updates, publications, checkpoints and crashes, against the distance between lists of updates."""
    rng = random.Random(seed)
    versions = opened(tmp_path)
    made, saved, names = [], [([], 0)], {0: []}  # type: ignore[var-annotated]
    number, current = 0, 0
    for _ in range(300):
        action = rng.choices(["train", "publish", "save", "crash"], [8, 5, 2, 1])[0]
        if action == "train":
            number += 1
            made = [*made, number]
            versions.trained()
        elif action == "publish":
            current = versions.take().version
            assert current not in names
            names[current] = made
        elif action == "save":
            saved.append((made, current))
            versions.saved()
        else:
            made, current = saved[-1 if rng.random() < 0.8 else rng.randrange(len(saved))]
            versions = opened(tmp_path, step=len(made), version=current)
            current = versions.take().version
            names[current] = made
        for name in rng.sample(sorted(names), min(5, len(names))):
            theirs = names[name]
            common = sum(1 for a, b in zip(theirs, made, strict=False) if a == b)
            assert versions.staleness(name) == len(theirs) + len(made) - 2 * common, (seed, name)


def test_each_user_has_a_line_of_their_own_and_numbers_are_shared(tmp_path: Path):
    versions = opened(tmp_path)
    for user in ("ada", "bob", "ada"):
        versions.trained(user)
        versions.take(user)
    assert [versions.staleness(v, "ada") for v in (0, 1, 3)] == [2, 1, 0]
    assert versions.staleness(2, "bob") == 0
    assert versions.newest == 3


def test_checkpoints_of_before_the_journal_keep_their_numbers(tmp_path: Path):
    """There the n-th update was version n; the newest checkpoint may be broken, and its number was served."""
    for step in (5, 6, 7):
        (tmp_path / f"checkpoint-{step}").mkdir()
    versions = Versions(tmp_path)
    versions.open(tmp_path)
    versions.resume(step=6, version=None)
    assert versions.take() == Version(8, parent=6, step=6, checkpoint=6)
    assert [versions.staleness(v) for v in (0, 4, 6, 7, 8)] == [6, 2, 0, 1, 0]
    assert opened(tmp_path).newest == 8


def test_a_new_directory_goes_on_with_the_numbers_of_the_checkpoint_it_starts_from(tmp_path: Path):
    updated(opened(tmp_path / "old"), 3)
    versions = Versions(tmp_path / "new")
    versions.open(tmp_path / "old")
    versions.resume(step=3, version=3)
    assert versions.take() == Version(4, parent=3, step=3, checkpoint=3)
    assert opened(tmp_path / "old").newest == 3


def test_a_number_that_engines_serve_already_is_passed_over(tmp_path: Path):
    assert opened(tmp_path).take(above=41).version == 42


def test_turns_of_another_run_count_as_fresh(tmp_path: Path):
    versions = opened(tmp_path)
    updated(versions, 3)
    assert versions.staleness(99) == 0
