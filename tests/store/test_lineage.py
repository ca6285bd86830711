"""A claimed turn knows which turns of its session it goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slime.store import Store
from slime.store.leases import FARTHEST
from slime.types import Message, Turn, TurnKind
from stored_turns import build_turn

NEXT: tuple[Message, ...] = ({"role": "user", "content": "go on"},)


async def ancestors(folder: Path, *turns: Turn, limit: int = 99) -> dict[str, tuple[str, ...]]:
    async with Store.open(folder / "buffer") as store:
        for turn in turns:
            await store.append(turn)
            await store.attach(turn.turn_id, NEXT)
        claims = await store.claim(limit, "test", 60.0)
    return {claim.turn.turn_id: claim.turn.ancestors or () for claim in claims}


def chain(*names: str, **changes: Any) -> list[Turn]:
    turns: list[Turn] = []
    for name in names:
        turns.append(build_turn(name, turns[-1] if turns else None, **changes))
    return turns


async def test_a_chain_nearest_first(tmp_path: Path) -> None:
    assert await ancestors(tmp_path, *chain("a", "b", "c")) == {"a": (), "b": ("a",), "c": ("b", "a")}


async def test_a_history_begun_anew_goes_on_from_what_came_before_it_in_the_session(tmp_path: Path) -> None:
    first = chain("a", "b")
    elsewhere = build_turn("x", session_id="other")
    asked = build_turn("z", first[1], kind=TurnKind.COMPACTION)
    anew = build_turn("c")
    found = await ancestors(tmp_path, *first, elsewhere, asked, anew, build_turn("d", anew))
    assert found == {"a": (), "b": ("a",), "x": (), "c": ("b", "a"), "d": ("c", "b", "a")}


async def test_a_turn_whose_parent_was_never_stored_goes_on_from_what_came_before_it(tmp_path: Path) -> None:
    a, _lost, c = chain("a", "lost", "c")
    assert await ancestors(tmp_path, a, c) == {"a": (), "c": ("a",)}


async def test_branches_stand_beside_each_other(tmp_path: Path) -> None:
    a, b = chain("a", "b")
    again = build_turn("b2", a, kind=TurnKind.BRANCH)
    retry = build_turn("a2", kind=TurnKind.RETRY, retry_of="a")
    found = await ancestors(tmp_path, a, b, again, retry, build_turn("c", again))
    assert found == {"a": (), "b": ("a",), "b2": ("a",), "a2": (), "c": ("b2", "a")}


async def test_a_turn_knows_so_many_turns_back_and_no_more(tmp_path: Path) -> None:
    names = [f"t{i}" for i in range(FARTHEST + 3)]
    found = await ancestors(tmp_path, *chain(*names))
    assert found[names[-1]] == tuple(names[-2 : -2 - FARTHEST : -1])


async def test_turns_that_name_each_other_as_parents_are_still_claimed(tmp_path: Path) -> None:
    a = build_turn("a", parent_id="b")
    assert await ancestors(tmp_path, a, build_turn("b", a)) == {"a": ("b",), "b": ("a",)}
