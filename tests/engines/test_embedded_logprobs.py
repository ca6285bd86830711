"""Whatever way a token's keys and values came about, its log-prob is the one transformers' forward pass gives."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import torch
from embedded_server import Engine, random_model, reference, reference_logprobs, serve, until
from random_model import build_random_model
from slime.weights.models import write_weights
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

TOLERANCE = 1e-5


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(f"{length} {seed}")
    return [rng.randrange(256) for _ in range(length)]


def check(model_dir: Path, prompt: list[int], answer: dict, temperature: float = 1.0) -> None:
    expected = reference_logprobs(model_dir, prompt + answer["output_ids"], temperature)[len(prompt) - 1 :]
    entries = answer["meta_info"]["output_token_logprobs"]
    assert [entry[1] for entry in entries] == answer["output_ids"]
    assert [entry[0] for entry in entries] == pytest.approx(expected, abs=TOLERANCE)


async def test_many_lengths_and_temperatures_at_once():
    model_dir = random_model()
    async with serve(model_dir) as engine:
        cases = [(1 + 17 * i, 0.5 + i / 10) for i in range(12)]
        answers = await asyncio.gather(
            *(engine.generate(prompt_of(n), max_new_tokens=5 + n, temperature=t, ignore_eos=True) for n, t in cases)
        )
    for (length, temperature), answer in zip(cases, answers, strict=True):
        assert len(answer["output_ids"]) == 5 + length
        check(model_dir, prompt_of(length), answer, temperature)


async def test_turns_of_a_session_reuse_what_is_computed():
    model_dir = random_model()
    async with serve(model_dir) as engine:
        prompt = prompt_of(60)
        for turn in range(4):
            answer = await engine.generate(prompt, max_new_tokens=30, ignore_eos=True)
            check(model_dir, prompt, answer)
            # All but the last token of the turn before is there, which was sampled and never fed.
            assert answer["meta_info"]["cached_tokens"] == (len(prompt) - 21 if turn else 0)
            prompt = prompt + answer["output_ids"] + prompt_of(20, seed=turn)


async def test_a_shared_prefix_is_copied_from_a_busy_slot():
    model_dir = random_model()
    shared = prompt_of(80)
    async with serve(model_dir) as engine:
        long = asyncio.create_task(engine.generate([*shared, 1], max_new_tokens=400, ignore_eos=True))
        await until(lambda: engine.service.loop.num_generated > 0)
        answer = await engine.generate([*shared, 2, 3], max_new_tokens=20, ignore_eos=True)
        assert not long.done()
        check(model_dir, [*shared, 1], await long)
    assert answer["meta_info"]["cached_tokens"] == 80
    check(model_dir, [*shared, 2, 3], answer)


async def test_prompts_in_small_pieces_between_decoding_rows(monkeypatch: pytest.MonkeyPatch):
    model_dir = random_model()
    monkeypatch.setattr("slime.engines.embedded.planning.ChunkBudget.num_tokens", lambda self, running: 7)
    async with serve(model_dir) as engine:
        lengths = [3, 50, 120, 9, 200]
        answers = await asyncio.gather(
            *(engine.generate(prompt_of(n), max_new_tokens=40, logprob_start_len=0, ignore_eos=True) for n in lengths)
        )
        assert engine.service.loop.num_steps > sum(lengths) // 7
    for length, answer in zip(lengths, answers, strict=True):
        check(model_dir, prompt_of(length), answer)
        scored = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"]]
        assert scored[0] is None
        assert scored[1:] == pytest.approx(reference_logprobs(model_dir, prompt_of(length)), abs=TOLERANCE)


async def test_one_long_sequence_among_short_ones_is_attended_apart():
    model_dir = random_model()
    async with serve(model_dir) as engine:
        lengths = [1500, 8, 9, 10, 11, 12]
        answers = await asyncio.gather(
            *(engine.generate(prompt_of(n), max_new_tokens=25, ignore_eos=True) for n in lengths)
        )
    for length, answer in zip(lengths, answers, strict=True):
        check(model_dir, prompt_of(length), answer)


async def test_slots_grow_and_sequences_give_way_where_memory_is_short():
    """Room for 600 tokens in all: two sequences of 290 fit one after the other, not side by side."""
    model_dir = random_model()
    token_bytes = 2 * 2 * 2 * 16 * 4
    async with serve(model_dir, kv_cache_bytes=1100 * token_bytes, num_cached_sessions=0) as engine:
        answers = await asyncio.gather(
            *(engine.generate(prompt_of(20, seed=i), max_new_tokens=270, ignore_eos=True) for i in range(3))
        )
        assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0
    for i, answer in enumerate(answers):
        assert len(answer["output_ids"]) == 270
        check(model_dir, prompt_of(20, seed=i), answer)


async def update(engine: Engine, weights_dir: Path, version: int, **fields: object) -> None:
    await engine.post("/update_weights_from_disk", model_path=str(weights_dir), weight_version=str(version), **fields)


def check_spans(answer: dict, prompt: list[int], models: dict[str, Path]) -> None:
    """Every token under the weights that its span names, everything before it computed by the same weights."""
    ids = prompt + answer["output_ids"]
    entries = answer["meta_info"]["output_token_logprobs"]
    for span in answer["meta_info"]["weight_versions"]:
        expected = reference_logprobs(models[span["version"]], ids)[len(prompt) - 1 :]
        found = [entry[0] for entry in entries[span["start"] : span["end"]]]
        assert found == pytest.approx(expected[span["start"] : span["end"]], abs=TOLERANCE)


async def test_weights_change_under_running_requests_and_everything_is_computed_anew():
    models = {"default": random_model(0), "1": random_model(1), "2": random_model(2)}
    async with serve(models["default"]) as engine:
        prompts = [prompt_of(10 + 30 * i) for i in range(4)]
        running = [
            asyncio.create_task(engine.generate(prompt, max_new_tokens=600, ignore_eos=True)) for prompt in prompts
        ]
        for version in (1, 2):
            target = engine.service.loop.num_generated + 400
            await until(lambda target=target: engine.service.loop.num_generated >= target)
            await update(engine, models[str(version)], version)
        answers = await asyncio.gather(*running)
        follow_up = prompts[0] + answers[0]["output_ids"]
        answer = await engine.generate(follow_up, max_new_tokens=9)
        check(models["2"], follow_up, answer)
    for prompt, answer in zip(prompts, answers, strict=True):
        versions = [span["version"] for span in answer["meta_info"]["weight_versions"]]
        assert versions == ["default", "1", "2"]
        assert answer["meta_info"]["num_retractions"] == 2
        check_spans(answer, prompt, models)


async def test_in_place_keeps_what_old_weights_computed():
    models = {"default": random_model(0), "1": random_model(1)}
    prompt = prompt_of(50)
    async with serve(models["default"]) as engine:
        task = asyncio.create_task(engine.generate(prompt, max_new_tokens=300, ignore_eos=True))
        await until(lambda: engine.service.loop.num_generated >= 20)
        await engine.post("/pause_generation", mode="in_place")
        refused = await engine.post(
            "/update_weights_from_disk", expect=400, model_path=str(models["1"]), weight_version="1"
        )
        assert "in place" in refused["message"]
        assert engine.service.loop.version == 0
        await update(engine, models["1"], 1, flush_cache=False)
        await engine.post("/continue_generation")
        answer = await task
    meta = answer["meta_info"]
    assert meta["num_retractions"] == 0
    (_, old), (new_start, end) = [(span["start"], span["end"]) for span in meta["weight_versions"]]
    assert (old, end) == (new_start, 300)
    # The first token after the swap: old weights' keys and values, new weights' query.
    ids = prompt + answer["output_ids"]
    past = len(prompt) + new_start - 1
    with torch.no_grad():
        cache = reference(models["default"])(torch.tensor([ids[:past]]), use_cache=True).past_key_values
        logits = reference(models["1"])(torch.tensor([ids[past : past + 1]]), past_key_values=cache).logits[0, -1]
    expected = torch.log_softmax(logits, -1)[ids[past + 1]].item()
    assert meta["output_token_logprobs"][new_start][0] == pytest.approx(expected, abs=TOLERANCE)
    assert expected != pytest.approx(reference_logprobs(models["1"], ids)[past], abs=1e-3)


async def test_a_swap_while_paused_by_retract(tmp_path: Path):
    models = {"default": random_model(0), "5": random_model(1)}
    published = tmp_path / "5"
    write_weights(
        AutoModelForCausalLM.from_pretrained(models["5"]).state_dict(),
        published,
        version=5,
        template_dir=models["default"],
    )
    prompt = prompt_of(40)
    async with serve(models["default"]) as engine:
        task = asyncio.create_task(engine.generate(prompt, max_new_tokens=200, ignore_eos=True))
        await until(lambda: engine.service.loop.num_generated >= 20)
        await engine.post("/pause_generation", mode="retract")
        await engine.post("/flush_cache")
        await update(engine, published, 5)
        await engine.post("/continue_generation")
        answer = await task
    check_spans(answer, prompt, models)
    assert [span["version"] for span in answer["meta_info"]["weight_versions"]] == ["default", "5"]


@pytest.mark.parametrize("family", ["llama", "mistral"])
async def test_other_families_and_sliding_windows(tmp_path: Path, family: str):
    torch.manual_seed(0)
    shape = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "initializer_range": 0.1,
    }
    if family == "llama":
        LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(tmp_path)
    else:
        MistralForCausalLM(MistralConfig(**shape, sliding_window=24)).save_pretrained(tmp_path)
    async with serve(tmp_path) as engine:
        prompts = [prompt_of(n) for n in (5, 30, 61)]
        answers = await asyncio.gather(*(engine.generate(p, max_new_tokens=40, ignore_eos=True) for p in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        check(tmp_path, prompt, answer)


async def test_scoring_follows_the_dialect(tmp_path: Path):
    model_dir = build_random_model(tmp_path / "model", seed=3)
    prompt = prompt_of(33)
    async with serve(model_dir) as engine:
        await engine.generate(prompt, max_new_tokens=1)
        answer = await engine.generate(
            prompt, max_new_tokens=0, logprob_start_len=20, top_logprobs_num=3, token_ids_logprob=[4, 9]
        )
    meta = answer["meta_info"]
    assert (answer["output_ids"], answer["text"], meta["completion_tokens"]) == ([], "", 0)
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    assert meta["cached_tokens"] == 20, "what is to be scored is computed, whatever the cache holds"
    with torch.no_grad():
        table = torch.log_softmax(reference(model_dir)(torch.tensor([prompt])).logits[0], -1)
    assert meta["input_token_logprobs"][0] == [None, prompt[20], None]
    assert [e[0] for e in meta["input_token_logprobs"][1:]] == pytest.approx(
        [table[i - 1, prompt[i]].item() for i in range(21, 33)], abs=TOLERANCE
    )
    assert meta["input_top_logprobs"][0] is None
    assert meta["input_token_ids_logprobs"][0] is None
    for position, (top, chosen) in enumerate(
        zip(meta["input_top_logprobs"][1:], meta["input_token_ids_logprobs"][1:], strict=True), start=20
    ):
        assert [e[0] for e in top] == pytest.approx(table[position].topk(3).values.tolist(), abs=TOLERANCE)
        assert [e[0] for e in chosen] == pytest.approx(table[position, [4, 9]].tolist(), abs=TOLERANCE)
    # What would come first, though nothing was sampled.
    assert [e[1] for e in meta["output_top_logprobs"][0]] == table[-1].topk(3).indices.tolist()
    assert [e[0] for e in meta["output_token_ids_logprobs"][0]] == pytest.approx(
        table[-1, [4, 9]].tolist(), abs=TOLERANCE
    )
    assert meta["output_token_logprobs"] == []
