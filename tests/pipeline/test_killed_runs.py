"""A run is killed, again and again, at moments nobody chose, while people talk on: what its numbers mean afterwards.

The engine outlives the kills and remembers what it was sent. The trainer's weights are a hash of every update on the
way to them (`ScriptedLearner`), so equal contents are equal histories.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn
from scripted_engine import ScriptedEngine
from slime.engines.dialect.requests import UpdateCall
from slime.engines.scripted.server import ScriptedApp
from slime.protocols import GenerateRequest
from slime.store import Store
from slime.types import SamplingParams, Turn, TurnKind, TurnState

SAVE_INTERVAL = 7


class RememberingEngine(ScriptedEngine):
    """Keeps what it was sent: (version, content), in order."""

    def __init__(self) -> None:
        super().__init__(["yes indeed"])
        self.sent: list[tuple[int, str]] = []
        update = self.core.update_weights

        async def remember(call: UpdateCall) -> None:
            self.sent.append((call.version, (Path(call.model_path) / "weights").read_text()))
            await update(call)

        self.core.update_weights = remember  # type: ignore[method-assign]


@contextlib.asynccontextmanager
async def listening(engine: ScriptedEngine) -> AsyncIterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(ScriptedApp(engine.core), log_level="error", lifespan="off"))
        with contextlib.suppress(ValueError):
            server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


async def talk(engine: ScriptedEngine, store: Store, person: int, acknowledged: list[str]) -> None:
    """Turns that are stored with what was said next, for ever; each carries the version that made it."""
    for number in range(10**6):
        name = f"p{person}n{number}"
        completion = await engine.generate(GenerateRequest(name, (1, 2, 3), SamplingParams(max_new_tokens=4)))
        turn = Turn(
            turn_id=name,
            session_id=f"s{name}",
            parent_id=None,
            kind=TurnKind.MAIN,
            messages=({"role": "user", "content": f"ask {name}"},),
            prompt_ids=(1, 2, 3),
            completion=completion,
            sampling=SamplingParams(),
            reply={"role": "assistant", "content": completion.text},
            next_state=({"role": "user", "content": "thanks"},),
        )
        await store.append(turn)
        acknowledged.append(name)
        await asyncio.sleep(0.01)


async def killed(folder: Path, num_kills: int, seed: int) -> tuple[list[tuple[int, str]], list[str]]:
    """What the engine was sent and which turns were stored, over so many lives and one that ends by itself."""
    rng = random.Random(seed)
    engine, acknowledged = RememberingEngine(), []  # type: ignore[var-annotated]
    driver = Path(__file__).with_name("killed_driver.py")
    async with listening(engine) as url, Store.open(folder / "buffer") as store:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(driver), str(folder), url, str(SAVE_INTERVAL)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(driver.parents[1])},  # where the scripted trainer is
        )
        assert process.stdin is not None
        assert process.stdout is not None
        people = [asyncio.create_task(talk(engine, store, person, acknowledged)) for person in range(3)]
        try:
            for _ in range(num_kills):
                process.stdin.write(b"run\n")
                pid = int(await asyncio.wait_for(process.stdout.readline(), 120))
                updates = len(engine.sent) + rng.randrange(12)
                async with asyncio.timeout(60):
                    while len(engine.sent) < updates:  # noqa: ASYNC110 - another process makes them
                        await asyncio.sleep(0.002)
                await asyncio.sleep(rng.uniform(0, 0.1))
                os.kill(pid, signal.SIGKILL)
                assert int(await process.stdout.readline()) == -signal.SIGKILL, "the kill met a driver that was running"
            for person in people:
                person.cancel()
            await asyncio.gather(*people, return_exceptions=True)
            process.stdin.write(b"drain\n")
            await process.stdout.readline()
            assert int(await asyncio.wait_for(process.stdout.readline(), 120)) == 0
        finally:
            process.stdin.close()
            await process.wait()
    return engine.sent, acknowledged


@pytest.mark.parametrize(
    ("num_kills", "seed"),
    [
        pytest.param(4, 0, marks=pytest.mark.slow),
        pytest.param(30, 1, marks=pytest.mark.long),
    ],
)
async def test_no_number_names_two_weights_and_no_turn_counts_twice(tmp_path: Path, num_kills: int, seed: int):
    sent, acknowledged = await killed(tmp_path, num_kills, seed)

    contents = defaultdict(set)
    for version, content in sent:
        contents[version].add(content)
    assert {version: found for version, found in contents.items() if len(found) > 1} == {}
    journal = [json.loads(line) for line in (tmp_path / "save" / "versions.jsonl").read_text().splitlines()]
    numbers = [line["version"] for line in journal]
    assert numbers == sorted(set(numbers))
    assert set(contents) <= set(numbers), "what was served had been written down"

    states = [json.loads(file.read_text()) for file in sorted((tmp_path / "save").glob("checkpoint-*/state.json"))]
    consumed = {int(step): turns for state in states for step, turns in state["consumed"].items()}
    assert sorted(consumed) == list(range(1, max(consumed) + 1)), "one line of updates, none missing"
    times = Counter(turn_id for turns in consumed.values() for turn_id in turns)
    assert [turn_id for turn_id, count in times.items() if count > 1] == []
    newest = max(states, key=lambda state: state["step"])
    assert sent[-1] == (numbers[-1], newest["weights"]), "what is served in the end is what the checkpoint holds"
    assert len(numbers) > max(consumed), "some updates were lost, and done again under other numbers"

    async with Store.open(tmp_path / "buffer", appends=False) as store:
        trained = {turn_id: step for step, turns in consumed.items() for turn_id in turns}
        for turn_id in acknowledged:
            turn = await store.get(turn_id)
            assert turn is not None
            if turn.state is TurnState.TRAINED:
                assert await store.trained_at(turn_id) == trained[turn_id]
            else:
                assert (turn.state, turn_id in trained) == (TurnState.EXCLUDED, False)
                assert "stale" in turn.reason
    assert trained.keys() <= set(acknowledged)
