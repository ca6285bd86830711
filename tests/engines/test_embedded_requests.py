"""Requests as clients make them: streams, stops, seeds, aborts, a full engine, health, weights that are no good."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from pathlib import Path

import orjson
import psutil
import pytest
import torch
from embedded_server import Engine, random_model, serve, until
from safetensors.torch import save_file
from slime.engines.embedded.__main__ import main
from slime.weights.models import write_weights
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, BloomConfig, BloomForCausalLM

PROMPT = list(b"Once upon a time there was a model ")


async def events(engine: Engine, prompt: list[int], **fields: object) -> list[dict]:
    """The events of a stream, its end checked."""
    lines = []
    async with engine.client.stream("POST", "/generate", json=engine.body(prompt, stream=True, **fields)) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line:
                lines.append(line.removeprefix("data: "))
    assert lines[-1] == "[DONE]"
    return [orjson.loads(line) for line in lines[:-1]]


async def test_events_are_cumulative_or_only_what_is_new():
    async with serve(random_model()) as engine:
        whole = await engine.generate(PROMPT, max_new_tokens=40, sampling_seed=1, ignore_eos=True)
        cumulative = await events(engine, PROMPT, max_new_tokens=40, sampling_seed=1, ignore_eos=True)
    async with serve(random_model(), incremental_streaming_output=True) as engine:
        pieces = await events(engine, PROMPT, max_new_tokens=40, sampling_seed=1, ignore_eos=True)
    assert len(cumulative) > 20
    assert cumulative[-1]["output_ids"] == whole["output_ids"]
    assert cumulative[-1]["text"] == whole["text"]
    for earlier, later in itertools.pairwise(cumulative):
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
        assert later["text"].startswith(earlier["text"])
    assert [token for piece in pieces for token in piece["output_ids"]] == whole["output_ids"]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    logprobs = [entry for piece in pieces for entry in piece["meta_info"]["output_token_logprobs"]]
    assert logprobs == whole["meta_info"]["output_token_logprobs"]
    assert [piece["meta_info"]["completion_tokens"] for piece in pieces][-1] == 40


async def test_no_event_ends_in_half_a_character(tmp_path: Path):
    """A model that says the same characters of one to four bytes over and over, one byte a token."""
    text = "ü世🌍."
    model_dir = repeating_model(tmp_path, text)
    async with serve(model_dir, incremental_streaming_output=True) as engine:
        told = await events(engine, ids_of(text), max_new_tokens=3 * len(text.encode()), temperature=0.0)
    assert "".join(event["text"] for event in told) == text * 3
    assert all("\ufffd" not in event["text"] for event in told)
    assert {"ü", "世", "🌍"} & {event["text"] for event in told}, "characters leave as they become whole"


def ids_of(text: str) -> list[int]:
    return list(Tokenizer.from_file(str(random_model() / "tokenizer.json")).encode(text).ids)


def repeating_model(directory: Path, cycle: str) -> Path:
    """A model that knows one thing: which byte follows which in a text of bytes that are all different."""
    source = random_model()
    model = AutoModelForCausalLM.from_pretrained(source)
    ids = ids_of(cycle)
    assert len(set(ids)) == len(ids) <= model.config.hidden_size
    with torch.no_grad():
        for parameter in [*model.model.layers.parameters(), model.model.embed_tokens.weight, model.lm_head.weight]:
            parameter.zero_()
        for state, (token_id, follower) in enumerate(zip(ids, ids[1:] + ids[:1], strict=True)):
            model.model.embed_tokens.weight[token_id, state] = 1.0
            model.lm_head.weight[follower, state] = 5.0
    write_weights(model.state_dict(), directory / "repeating", version=0, template_dir=source)
    return directory / "repeating"


async def test_stop_strings_across_tokens_are_cut_and_never_streamed(tmp_path: Path):
    prompt = ids_of(" ")
    model_dir = repeating_model(tmp_path, "abcdefgh. ")
    async with serve(model_dir, incremental_streaming_output=True) as engine:
        options = {"max_new_tokens": 50, "temperature": 0.0, "stop": ["gh.", "zzz"]}
        answer = await engine.generate(prompt, **options)
        assert answer["text"] == "abcdef"
        assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "gh."}
        assert answer["output_ids"] == ids_of("abcdefgh.")
        told = await events(engine, prompt, **options)
        assert "".join(event["text"] for event in told) == "abcdef"
        assert "g" not in "".join(event["text"] for event in told)
        kept = await engine.generate(prompt, no_stop_trim=True, **options)
        assert kept["text"] == "abcdefgh."
        (letter,) = ids_of("b")
        stopped = await engine.generate(prompt, max_new_tokens=50, temperature=0.0, stop_token_ids=[letter])
        assert (stopped["output_ids"], stopped["text"]) == (ids_of("ab"), "a")


async def test_seeds_repeat_whatever_else_runs():
    async with serve(random_model()) as engine:
        alone = await engine.generate(PROMPT, max_new_tokens=30, sampling_seed=42, ignore_eos=True)
        crowd = [
            engine.generate(PROMPT[i:], max_new_tokens=40, temperature=0.9, top_p=0.8, ignore_eos=True)
            for i in range(6)
        ]
        again, *_ = await asyncio.gather(
            engine.generate(PROMPT, max_new_tokens=30, sampling_seed=42, ignore_eos=True), *crowd
        )
        other = await engine.generate(PROMPT, max_new_tokens=30, sampling_seed=43, ignore_eos=True)
        unseeded = [await engine.generate(PROMPT, max_new_tokens=30, ignore_eos=True) for _ in range(2)]
    assert again["output_ids"] == alone["output_ids"]
    assert other["output_ids"] != alone["output_ids"]
    assert unseeded[0]["output_ids"] != unseeded[1]["output_ids"]


async def test_samples_follow_their_distribution():
    """600 first tokens against the probabilities the engine itself reports, by a chi-squared bound."""
    async with serve(random_model(), max_running_requests=32, max_queued_requests=1000) as engine:
        whole = await engine.generate(PROMPT, max_new_tokens=0, top_logprobs_num=8)
        top = whole["meta_info"]["output_top_logprobs"][0]
        answers = await asyncio.gather(
            *(engine.generate(PROMPT, max_new_tokens=1, temperature=1.0, sampling_seed=i) for i in range(600))
        )
    counts = Counter(answer["output_ids"][0] for answer in answers)
    statistic = 0.0
    for logprob, token_id, _ in top:
        expected = 600 * torch.tensor(logprob).exp().item()
        statistic += (counts[token_id] - expected) ** 2 / expected
    assert statistic < 26.1  # 99.9 % of chi-squared with 8 degrees of freedom


async def test_aborting_and_leaving_free_the_slot():
    async with serve(random_model(), max_running_requests=2, max_queued_requests=8) as engine:
        loop = engine.service.loop
        stays = asyncio.create_task(engine.generate(PROMPT, max_new_tokens=900, ignore_eos=True))
        aborted = asyncio.create_task(engine.generate(PROMPT, rid="victim", max_new_tokens=1900, ignore_eos=True))
        waits = asyncio.create_task(engine.generate(PROMPT, rid="waiting", max_new_tokens=1900, ignore_eos=True))
        await until(lambda: len(loop.running) == 2 and len(loop.waiting) == 1)
        await engine.post("/abort_request", rid="waiting")
        assert (await waits)["meta_info"]["finish_reason"]["message"] == "Abort in waiting queue"
        await engine.post("/abort_request", rid="victim")
        answer = await aborted
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(answer["output_ids"]) == len(answer["meta_info"]["output_token_logprobs"]) > 0
        await until(lambda: len(loop.running) == 1)
        body = engine.body(PROMPT, stream=True, max_new_tokens=1900, ignore_eos=True)
        async with engine.client.stream("POST", "/generate", json=body) as response:
            await response.aiter_lines().__anext__()
            assert len(loop.running) == 2
        await until(lambda: len(loop.running) == 1)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(engine.generate(PROMPT, max_new_tokens=1900, ignore_eos=True), 0.1)
        await until(lambda: len(loop.running) == 1)
        assert len((await stays)["output_ids"]) == 900
        assert loop.kv.num_busy == 0


async def test_a_full_engine_refuses_and_stays_healthy():
    async with serve(random_model(), max_running_requests=2, max_queued_requests=1) as engine:
        running = [asyncio.create_task(engine.generate(PROMPT, max_new_tokens=1500, ignore_eos=True)) for _ in range(3)]
        await until(lambda: len(engine.service.loop.running) == 2)
        refused = await engine.generate(PROMPT, expect=503, max_new_tokens=1)
        assert refused["message"] == "The request queue is full."
        (event,) = await events(engine, PROMPT, max_new_tokens=1)
        assert event["meta_info"]["finish_reason"]["status_code"] == 503
        assert (await engine.client.get("/health_generate")).status_code == 200
        assert not any(task.done() for task in running)
        await engine.post("/abort_request", abort_all=True)
        await asyncio.gather(*running)
        await engine.generate(PROMPT, max_new_tokens=1)


async def test_a_paused_engine_is_healthy_and_does_nothing():
    async with serve(random_model()) as engine:
        await engine.post("/pause_generation", mode="in_place")
        waiting = asyncio.create_task(engine.generate(PROMPT, max_new_tokens=2))
        assert (await engine.client.get("/health_generate")).status_code == 200
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await engine.post("/continue_generation")
        await waiting


async def test_an_idle_engine_uses_no_cpu():
    async with serve(random_model()) as engine:
        await engine.generate(PROMPT, max_new_tokens=4)
        process = psutil.Process()
        before = process.cpu_times()
        await asyncio.sleep(1.0)
        after = process.cpu_times()
    assert (after.user - before.user) + (after.system - before.system) < 0.1


async def test_bad_weights_change_nothing(tmp_path: Path):
    source = random_model()
    good = AutoModelForCausalLM.from_pretrained(source).state_dict()
    write_weights(good, tmp_path / "corrupt", version=3, template_dir=source)
    file = tmp_path / "corrupt" / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-5] ^= 255
    file.write_bytes(raw)
    other = random_model(1)
    shrunk = {name: tensor.clone() for name, tensor in good.items()}
    shrunk["model.norm.weight"] = shrunk["model.norm.weight"][:32]
    save_raw(tmp_path / "shape", source, shrunk)
    save_raw(tmp_path / "missing", source, {name: t for name, t in good.items() if name != "model.norm.weight"})
    save_raw(tmp_path / "overflow", source, {name: t / 0 if "norm" in name else t for name, t in good.items()})
    async with serve(source) as engine:
        before = await engine.generate(PROMPT, max_new_tokens=12, temperature=0.0)
        for name, reason in [
            ("corrupt", "model.safetensors"),
            ("shape", "model.norm.weight"),
            ("missing", "model.norm.weight"),
            ("overflow", "non-finite"),
            ("nowhere", "nowhere"),
        ]:
            refused = await engine.post(
                "/update_weights_from_disk", expect=400, model_path=str(tmp_path / name), weight_version="4"
            )
            assert refused["success"] is False
            assert reason in refused["message"]
        after = await engine.generate(PROMPT, max_new_tokens=12, temperature=0.0)
        assert after["output_ids"] == before["output_ids"]
        assert after["meta_info"]["weight_version"] == "default"
        assert after["meta_info"]["cached_tokens"] == len(PROMPT) - 1, "nor was the cache dropped"
        await engine.post("/update_weights_from_disk", model_path=str(other), weight_version="4")
        newer = await engine.generate(PROMPT, max_new_tokens=12, temperature=0.0)
    assert newer["meta_info"]["weight_version"] == "4"
    assert newer["output_ids"] != before["output_ids"]


def save_raw(directory: Path, template: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A model directory without a manifest, whatever is in it."""
    directory.mkdir()
    (directory / "config.json").write_text((template / "config.json").read_text())
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")


def test_models_it_cannot_run_are_named_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=1, n_head=2, vocab_size=100)).save_pretrained(
        tmp_path / "bloom"
    )
    (tmp_path / "empty").mkdir()
    for name, reason in [("bloom", "BloomForCausalLM"), ("empty", "config.json"), ("nowhere", "no such directory")]:
        assert main(["--model-path", str(tmp_path / name), "--device", "cpu"]) == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert line.startswith("error: ")
        assert reason in line


async def test_weights_with_a_manifest_are_served_as_their_version(tmp_path: Path):
    source = random_model()
    model = AutoModelForCausalLM.from_pretrained(source)
    write_weights(model.state_dict(), tmp_path / "seven", version=7, template_dir=source)
    async with serve(tmp_path / "seven") as engine:
        answer = await engine.generate(PROMPT, max_new_tokens=2)
    assert answer["meta_info"]["weight_version"] == "7"
