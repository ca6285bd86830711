"""What a fleet publishes, with engines that were started beside it: adapters, and versions that an engine refuses."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from random_model import build_random_model
from slime.cluster.fleet import Fleet
from slime.config.sections import EngineConfig, LoraConfig, ModelConfig
from slime.engines.backends import sglang
from slime.engines.launch import start_engine
from slime.errors import EngineRejected, EngineUnavailable
from slime.weights.adapters import Adapter, LoraShape, write_adapter

LORA = LoraConfig(use_lora=True)
MODEL = ModelConfig(model_path="/models/tiny", device="cpu")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_model(tmp_path_factory.mktemp("model"))


def adapter_dir(folder: Path, version: int, name: str = "policy") -> Path:
    pairs = {"model.q_proj": (torch.ones(8, 4), torch.ones(4, 8))}
    shape = LoraShape(8, 16.0, ("q_proj",))
    write_adapter(Adapter(shape, pairs), folder / f"{name}-{version}", name=name, version=version, base="b")
    return folder / f"{name}-{version}"


@contextlib.asynccontextmanager
async def fleet_of(num_engines: int, model_dir: Path, tmp_path: Path) -> AsyncIterator[Fleet]:
    model = ModelConfig(model_path=str(model_dir), device="cpu")
    engine = EngineConfig(engine_start_timeout_s=30)
    fleet = Fleet(model, engine, ("",) * num_engines, tmp_path, lora=LORA)
    async with contextlib.AsyncExitStack() as stack:
        for url in fleet.urls:
            port, log_path = int(url.rpartition(":")[2]), tmp_path / "engine.log"
            process = await start_engine(model, engine, backend="scripted", port=port, log_path=log_path)
            stack.push_async_callback(process.stop)
        stack.push_async_callback(fleet.stop)
        yield fleet


async def test_a_version_reaches_every_engine_and_one_that_starts_again_starts_with_the_newest(
    model_dir: Path, tmp_path: Path
) -> None:
    async with fleet_of(2, model_dir, tmp_path) as fleet:
        for version in (1, 2):
            await fleet.publish(adapter_dir(tmp_path, version), version)
        await fleet.publish(adapter_dir(tmp_path, 1, "user-ada"), 3)
        for client in fleet.clients:
            assert await client.adapters() == {"policy": [1, 2], "user-ada": [1]}
            assert await client.version() == 0, "the base stays what it was"
        flags = fleet.children[0].command()[-1]
        paths = flags[flags.index("--lora-paths") + 1 :]
        assert paths == (f"policy@2={tmp_path}/policy-2", f"user-ada@1={tmp_path}/user-ada-1")


async def test_a_refused_adapter_goes_live_nowhere(model_dir: Path, tmp_path: Path) -> None:
    async with fleet_of(1, model_dir, tmp_path) as fleet:
        await fleet.publish(adapter_dir(tmp_path, 1), 1)
        broken = adapter_dir(tmp_path, 2)
        fleet.clients[0].load_adapter = refuse  # type: ignore[assignment, method-assign]
        with pytest.raises(EngineRejected):
            await fleet.publish(broken, 2)
        assert fleet.children[0].command()[-1][-1] == f"policy@1={tmp_path}/policy-1"


async def refuse(*_: object) -> None:
    raise EngineRejected("no")


async def test_weights_that_one_engine_refuses_are_withdrawn_from_all(model_dir: Path, tmp_path: Path) -> None:
    async with fleet_of(3, model_dir, tmp_path) as fleet:
        for version in (1, 2):
            (tmp_path / f"v{version}").mkdir()
        willing, refusing = fleet.clients[:2], fleet.clients[2]
        accept, refusing.update_weights = refusing.update_weights, refuse  # type: ignore[assignment, method-assign]
        with pytest.raises(EngineRejected, match=f"{refusing.base_url} refused version 1, which is withdrawn from all"):
            await fleet.publish(tmp_path / "v1", 1)
        assert [await client.version() for client in fleet.clients] == [0, 0, 0]
        refusing.update_weights = accept  # type: ignore[method-assign]
        await fleet.publish(tmp_path / "v1", 1)
        refusing.update_weights = refuse  # type: ignore[assignment, method-assign]
        with pytest.raises(EngineRejected, match="refused version 2"):
            await fleet.publish(tmp_path / "v2", 2)
        assert [await client.version() for client in (*willing, refusing)] == [1, 1, 1]
        assert fleet.children[0].command()[-1][:2] == ("--weight-version", "1"), "one that starts again serves 1 too"


async def test_an_adapter_that_one_engine_refuses_is_withdrawn_from_all(model_dir: Path, tmp_path: Path) -> None:
    async with fleet_of(2, model_dir, tmp_path) as fleet:
        await fleet.publish(adapter_dir(tmp_path, 1), 1)
        fleet.clients[1].load_adapter = refuse  # type: ignore[assignment, method-assign]
        with pytest.raises(EngineRejected, match="refused version 2"):
            await fleet.publish(adapter_dir(tmp_path, 2), 2)
        assert [await client.adapters() for client in fleet.clients] == [{"policy": [1]}] * 2


async def test_what_an_engine_may_still_be_loading_is_in_use(model_dir: Path, tmp_path: Path) -> None:
    async with fleet_of(2, model_dir, tmp_path) as fleet:
        for version in (1, 2, 3):
            (tmp_path / f"v{version}").mkdir()
        await fleet.publish(tmp_path / "v1", 1)
        assert fleet.in_use() == {tmp_path / "v1"}
        assert await fleet.newest_version() == 1

        async def away(*_: object) -> None:
            raise EngineUnavailable("too slow")

        slow, update = fleet.clients[1], fleet.clients[1].update_weights
        slow.update_weights = away  # type: ignore[assignment, method-assign]
        for version in (2, 3):
            await fleet.publish(tmp_path / f"v{version}", version)
        assert fleet.in_use() == {tmp_path / f"v{version}" for version in (1, 2, 3)}
        slow.update_weights = update  # type: ignore[method-assign]
        await fleet._catch_up(1)
        assert fleet.in_use() == {tmp_path / "v3"}


def test_sglang_is_told_what_adapters_will_come() -> None:
    few = LoraConfig(use_lora=True, lora_rank=4, lora_target_modules="q_proj,v_proj")
    flags = sglang.BACKEND.adapter_flags(few, {}, is_cpu=False)
    assert flags == ("--enable-lora", "--max-lora-rank", "4", "--lora-target-modules", "q_proj", "v_proj")
    assert "all" in sglang.BACKEND.adapter_flags(LORA, {}, is_cpu=True)
    assert sglang.BACKEND.adapter_flags(LoraConfig(), {}, is_cpu=True) == ()
    merged = LoraConfig(use_lora=True, lora_publish="merged")
    assert sglang.BACKEND.adapter_flags(merged, {}, is_cpu=True) == ()
