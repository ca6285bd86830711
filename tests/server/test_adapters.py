"""Who is answered by whose adapter, and whose turns are stored as whose."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from server_rig import Rig, StartRig
from slime.config.sections import LoraConfig
from slime.engines.adapter_versions import FRESH_S
from slime.engines.dialect.requests import LoadAdapterCall
from slime.types import Turn

from openclaw.api.incoming import caller_of

PER_USER = LoraConfig(use_lora=True, adapter_per="user")


async def load(rig: Rig, name: str, version: int, folder: Path) -> None:
    await rig.engine.load_adapter(LoadAdapterCall(lora_name=f"{name}@{version}", lora_path=str(folder)))


async def newest_turn(rig: Rig) -> Turn:
    assert rig.store is not None
    return (await rig.store.recent(10))[-1]


@pytest.mark.parametrize("stream", [False, True])
async def test_everybody_is_answered_by_the_newest_version(start: StartRig, tmp_path: Path, stream: bool) -> None:
    rig = await start("Hello there.", lora=LoraConfig(use_lora=True))
    await rig.chat(stream=stream)
    assert (await newest_turn(rig)).policy_version == 0, "nothing is published yet: the base answers"
    await load(rig, "policy", 1, tmp_path)
    await load(rig, "policy", 2, tmp_path)
    await asyncio.sleep(2 * FRESH_S)
    await rig.chat(messages=[{"role": "user", "content": "again"}], stream=stream)
    turn = await newest_turn(rig)
    assert set(turn.completion.policy_versions) == {2}


async def test_with_adapters_for_each_user_everybody_has_their_own(start: StartRig, tmp_path: Path) -> None:
    rig = await start("Hello there.", lora=PER_USER)
    ada = caller_of(PER_USER, {}, {"user": "ada"}).adapter
    await load(rig, ada, 5, tmp_path)
    found = {}
    for user in ("ada", "bob"):
        await rig.chat(messages=[{"role": "user", "content": f"I am {user}"}], user=user)
        turn = await newest_turn(rig)
        found[user] = turn.policy_version, turn.source
    assert found == {"ada": (5, ada), "bob": (0, caller_of(PER_USER, {}, {"user": "bob"}).adapter)}


def test_a_user_is_one_of_a_credential() -> None:
    def name(key: str, user: str = "", header: str = "") -> str:
        headers = {"authorization": f"Bearer {key}"} | ({"x-openclaw-user": header} if header else {})
        return caller_of(PER_USER, headers, {"user": user} if user else {}).adapter

    assert name("k1", "ada") == name("k1", "ada") == name("k1", header="ada")
    assert len({name("k1", "ada"), name("k1", "bob"), name("k2", "ada"), name("k1"), name("k2")}) == 5
    assert all("ada" not in name(key, "ada") and key not in name(key, "ada") for key in ("k1", "k2"))
    assert caller_of(PER_USER, {}, {"user": ["not", "a", "text"]}).adapter == caller_of(PER_USER, {}, {}).adapter


def test_without_adapters_nobody_has_any() -> None:
    for lora in (LoraConfig(), LoraConfig(use_lora=True, lora_publish="merged")):
        assert caller_of(lora, {}, {"user": "ada"}).adapter == ""
