"""What a fleet publishes of adapters, with engines that were started beside it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from random_model import build_random_model
from slime.cluster.fleet import Fleet
from slime.config.sections import EngineConfig, LoraConfig, ModelConfig
from slime.engines.launch import adapter_flags, start_engine
from slime.errors import EngineRejected
from slime.weights import Adapter, LoraShape, write_adapter

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
        flags = fleet.children[0]._arguments()[-1]
        paths = flags[flags.index("--lora-paths") + 1 :]
        assert paths == (f"policy@2={tmp_path}/policy-2", f"user-ada@1={tmp_path}/user-ada-1")


async def test_a_refused_adapter_goes_live_nowhere(model_dir: Path, tmp_path: Path) -> None:
    async with fleet_of(1, model_dir, tmp_path) as fleet:
        await fleet.publish(adapter_dir(tmp_path, 1), 1)
        broken = adapter_dir(tmp_path, 2)
        refusing = fleet.clients[0]

        async def refuse(*_: object) -> None:
            raise EngineRejected("no")

        refusing.load_adapter = refuse  # type: ignore[method-assign]
        with pytest.raises(EngineRejected):
            await fleet.publish(broken, 2)
        assert fleet.children[0]._arguments()[-1][-1] == f"policy@1={tmp_path}/policy-1"


def test_sglang_is_told_what_adapters_will_come() -> None:
    engine = EngineConfig(backend="sglang")
    flags = adapter_flags(
        MODEL, engine, LoraConfig(use_lora=True, lora_rank=4, lora_target_modules="q_proj,v_proj"), {}
    )
    assert flags[:6] == ("--enable-lora", "--max-lora-rank", "4", "--lora-target-modules", "q_proj", "v_proj")
    assert "all" in adapter_flags(MODEL, engine, LORA, {})
    assert adapter_flags(MODEL, engine, LoraConfig(), {}) == ()
    assert adapter_flags(MODEL, engine, LoraConfig(use_lora=True, lora_publish="merged"), {}) == ()
