"""The parts of the embedded engine, each against a closed form or a second way of computing the same."""

from __future__ import annotations

import math
import random

import pytest
import torch
from embedded_server import random_model
from slime.engines.dialect.requests import GenerateCall, Sampling
from slime.engines.embedded.model import RaggedModel
from slime.engines.embedded.planning import ChunkBudget, plan_step
from slime.engines.embedded.sampling import RowSampling, sample, uniform
from slime.engines.embedded.sequence import Sequence
from slime.engines.embedded.shortcuts import take_shortcuts
from slime.engines.embedded.slots import CacheShape, KVSlots, Slot
from slime.engines.embedded.text import ReplyText, TextDecoder
from slime.errors import WeightsError
from transformers import LlamaConfig, LlamaForCausalLM

# ── sampling ────────────────────────────────────────────────────────────────────────────────────────────────────────


def row(seed: int = 0, output_ids: tuple[int, ...] = (), **changes: float) -> RowSampling:
    return RowSampling(Sampling(sampling_seed=seed, **changes), output_ids)  # type: ignore[arg-type]


def frequencies(logits: list[float], number: int = 4000, **changes: float) -> list[float]:
    rows = [row(seed=seed, **changes) for seed in range(number)]
    ids, _ = sample(torch.tensor([logits]).repeat(number, 1), rows)
    return (torch.bincount(ids, minlength=len(logits)) / number).tolist()


PROBABILITIES = [0.4, 0.3, 0.2, 0.1]
LOGITS = [math.log(p) for p in PROBABILITIES]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, PROBABILITIES),
        ({"temperature": 0.5}, [p * p / 0.3 for p in PROBABILITIES]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.6}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.4}, [1, 0, 0, 0]),
        ({"min_p": 0.6}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_k": 3, "top_p": 0.7}, [4 / 7, 3 / 7, 0, 0]),
        ({"temperature": 0.0}, [1, 0, 0, 0]),
    ],
)
def test_draws_follow_the_distribution(changes: dict[str, float], expected: list[float]):
    assert frequencies(LOGITS, **changes) == pytest.approx(expected, abs=0.03)


def test_what_has_no_probability_is_never_drawn():
    logits = [-math.inf, 0.0, -math.inf, 0.0, -math.inf]
    found = frequencies(logits)
    assert [found[0], found[2], found[4]] == [0, 0, 0]


def test_logprobs_are_tempered_and_not_truncated():
    rows = [row(temperature=0.5), row(top_k=1), row(temperature=0.0)]
    _, logprobs = sample(torch.tensor([LOGITS] * 3), rows)
    assert logprobs[0].exp().tolist() == pytest.approx([p * p / 0.3 for p in PROBABILITIES])
    assert logprobs[1].exp().tolist() == pytest.approx(PROBABILITIES)
    assert logprobs[2].exp().tolist() == pytest.approx(PROBABILITIES)


def test_penalties_by_hand():
    rows = [row(output_ids=(1, 1, 2), repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=0.5)]
    logits = torch.tensor([[1.0, 3.0, 0.5, -1.0]])
    _, logprobs = sample(logits.clone(), rows)
    # id 1: 3 - 2·0.25 - 0.5 = 2, halved; id 2: 0.5 - 0.25 - 0.5 < 0, doubled.
    expected = torch.log_softmax(torch.tensor([1.0, 1.0, -0.5, -1.0]), -1)
    assert logprobs[0].tolist() == pytest.approx(expected.tolist())


def test_uniform_numbers_are_uniform_and_independent():
    draws = torch.tensor([[uniform(seed, place) for place in range(64)] for seed in range(64)])
    assert ((draws >= 0) & (draws < 1)).all()
    assert draws.mean().item() == pytest.approx(0.5, abs=0.02)
    assert torch.histc(draws, bins=8, min=0, max=1).tolist() == pytest.approx([512] * 8, rel=0.15)
    assert len(set(draws.flatten().tolist())) > 4000
    assert uniform(1, 5) == uniform(1, 5) != uniform(1, 6)


# ── slots ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_slots(max_busy: int = 3, num_slots: int = 6, budget_tokens: int = 100_000, max_length: int = 2048) -> KVSlots:
    return KVSlots(
        CacheShape(num_layers=2, num_kv_heads=1, head_dim=4, dtype=torch.float32, device=torch.device("cpu")),
        max_busy=max_busy,
        num_slots=num_slots,
        max_length=max_length,
        budget_bytes=budget_tokens * 2 * 2 * 1 * 4 * 4,
    )


def fill(kv: KVSlots, slot: Slot, ids: list[int]) -> None:
    """Write keys that tell of their token, and values of its negative, as if they had been computed."""
    for position in range(slot.length, len(ids)):
        kv.keys[:, slot.index, :, position] = ids[position]
        kv.values[:, slot.index, :, position] = -ids[position]
    slot.length = len(ids)


def assert_holds(kv: KVSlots, slot: Slot) -> None:
    expected = torch.tensor(slot.ids[: slot.length], dtype=torch.float32)[:, None]
    assert torch.equal(kv.keys[1, slot.index, 0, : slot.length], expected.expand(-1, 4))
    assert torch.equal(kv.values[0, slot.index, 0, : slot.length], -expected.expand(-1, 4))


def test_slots_keep_what_they_hold_through_any_history():
    """Random sequences come, share prefixes, grow and go; every slot holds its tokens."""
    rng = random.Random(3)
    kv = make_slots()
    busy: list[tuple[Slot, list[int]]] = []
    past = [[rng.randrange(1000) for _ in range(40)] for _ in range(3)]
    for _ in range(300):
        if busy and (len(busy) == 3 or rng.random() < 0.4):
            slot, ids = busy.pop(rng.randrange(len(busy)))
            past.append(list(ids))
            kv.release(slot)
        elif rng.random() < 0.6:
            source = rng.choice(past[-8:])
            ids = source[: rng.randrange(1, len(source) + 1)] + [
                rng.randrange(1000) for _ in range(rng.randrange(1, 30))
            ]
            slot = kv.acquire(ids, object(), reuse_limit=len(ids) - 1)
            assert slot is not None
            assert slot.length < len(ids)
            assert_holds(kv, slot)
            fill(kv, slot, ids)
            busy.append((slot, ids))
        elif busy:
            slot, ids = rng.choice(busy)
            ids += [rng.randrange(1000) for _ in range(rng.randrange(1, 250))]
            if kv.ensure(len(ids)):
                fill(kv, slot, ids)
        assert kv.num_busy == len(busy)
        kv.gather()
        assert [slot.index for slot in kv.slots] == list(range(len(kv.slots)))
        for slot in kv.slots:
            assert_holds(kv, slot)
    assert kv.capacity > 256


def test_a_session_takes_its_own_slot_and_others_keep_theirs():
    kv = make_slots()
    first, second = list(range(100)), list(range(500, 600))
    for ids in (first, second):
        slot = kv.acquire(ids, object(), reuse_limit=99)
        assert slot is not None
        assert slot.length == 0
        fill(kv, slot, ids)
        kv.release(slot)
    again = kv.acquire([*second, 7], object(), reuse_limit=100)
    assert again is not None
    assert again.length == 100
    branch = kv.acquire([*first[:20], 7, 8], object(), reuse_limit=21)
    assert branch is not None
    assert branch.length == 20, "a short common start is copied"
    kept = [slot for slot in kv.slots if slot.owner is None and slot.length == 100]
    assert [slot.ids for slot in kept] == [first], "and its source stays"


def test_scattered_slots_gather_one_at_a_time():
    kv = make_slots(max_busy=16, num_slots=16)
    held = []
    for seed in range(16):
        slot = kv.acquire([seed] * 5, object(), reuse_limit=0)
        assert slot is not None
        fill(kv, slot, [seed] * 5)
        held.append(slot)
    for slot in held[1:-1]:
        kv.release(slot)
    assert [slot.index for slot in kv.slots if slot.owner] == [0, 15]
    kv.gather()
    first, second = (slot for slot in kv.slots if slot.owner)
    assert second.index - first.index < 4
    for slot in kv.slots:
        assert_holds(kv, slot)


def test_memory_bounds_slots_times_capacity():
    kv = make_slots(max_busy=3, num_slots=6, budget_tokens=4 * 256)
    assert len(kv.slots) == 3
    assert kv.max_length == 512
    slots = [kv.acquire([seed] * 20, object(), reuse_limit=0) for seed in range(3)]
    assert all(slots)
    assert kv.acquire([9], object(), reuse_limit=0) is None
    assert not kv.ensure(300), "three sequences of 512 do not fit"
    for slot in slots[1:]:
        assert slot is not None
        kv.release(slot)
    assert kv.ensure(300)
    assert kv.capacity == 512
    assert kv.acquire([9], object(), reuse_limit=0) is None


# ── planning ────────────────────────────────────────────────────────────────────────────────────────────────────────


def sequences(kv: KVSlots, lengths: list[tuple[int, int]]) -> list[Sequence]:
    """Running sequences of (tokens, of which computed)."""
    running = []
    for seed, (length, computed) in enumerate(lengths):
        call = GenerateCall(rid=str(seed), input_ids=(seed,) * length, sampling_params=Sampling(max_new_tokens=4))
        sequence = Sequence(call)
        sequence.slot = kv.acquire(sequence.tokens, sequence, reuse_limit=0)
        assert sequence.slot is not None
        assert kv.ensure(length)
        sequence.slot.length = computed
        running.append(sequence)
    return running


def test_the_oldest_prompt_gets_half_and_the_shortest_the_rest():
    kv = make_slots(max_busy=4)
    running = sequences(kv, [(1000, 0), (300, 0), (20, 0), (50, 49)])
    plan = plan_step(running, kv, 200, "cpu")
    assert {sequence.call.rid: count for sequence, count in plan.computed} == {"0": 100, "1": 80, "2": 20, "3": 1}
    plan = plan_step(running, kv, 150, "cpu")
    assert {sequence.call.rid: count for sequence, count in plan.computed} == {"0": 130, "2": 20, "3": 1}, "no slivers"
    plan = plan_step(running, kv, 200, "cpu")
    assert [sequence.call.rid for sequence in plan.sampled] == ["3", "2"]
    assert [plan.ids[place] for place in plan.keep] == [3, 2]
    assert plan.positions[0] == 49


def test_a_row_far_longer_than_the_others_is_taken_out_of_the_batch():
    kv = make_slots(max_busy=6)
    plan = plan_step(sequences(kv, [(20, 19), (1900, 1899), (21, 20), (22, 21), (23, 22)]), kv, 100, "cpu")
    assert plan.step.rows == [0, 2, 3, 4]
    assert [(chunk.slot, chunk.start, chunk.count) for chunk in plan.step.chunks] == [(1, 1899, 1)]


def test_the_budget_learns_the_price_of_a_prompt_token():
    budget, idle = ChunkBudget(), sequences(make_slots(), [(50, 0)])
    for _ in range(40):
        budget.learn(500, 500 * 0.0002)
    assert budget.num_tokens(idle) == pytest.approx(1000, rel=0.02)
    decoding = sequences(make_slots(), [(50, 49)])
    assert budget.num_tokens(decoding) == pytest.approx(250, rel=0.02)
    one_among_many = sequences(make_slots(), [(50, 49), (50, 0), (50, 0)])
    assert budget.num_tokens(one_among_many) == pytest.approx(500, rel=0.02)
    assert not budget.would_learn(64, 0), "steps without prompts teach nothing"
    assert budget.would_learn(64, 64)


# ── text ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def decoder() -> TextDecoder:
    return TextDecoder(random_model())


def encode(decoder: TextDecoder, text: str) -> list[int]:
    assert decoder._tokenizer is not None
    return list(decoder._tokenizer.encode(text).ids)


@pytest.mark.parametrize("text", ["plain", "Grüße, 世界 🌍!", "e\u0301 👩‍🚀", "<think>\nhm</think> ok"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_pieces_add_up_to_the_text_and_never_split_a_character(decoder: TextDecoder, text: str, size: int):
    ids = encode(decoder, text)
    reply = ReplyText(decoder, encode(decoder, "prompt é"), skip_special=True)
    told = [reply.extend(ids[start : start + size]) for start in range(0, len(ids), size)]
    assert reply.finish([]) == told[-1] == text
    assert all(text.startswith(piece) for piece in told)


def test_a_broken_end_is_told_at_the_end_only(decoder: TextDecoder):
    ids = encode(decoder, "aé")[:-1]
    reply = ReplyText(decoder, [], skip_special=True)
    assert reply.extend(ids) == "a"
    assert reply.finish([]) == "a\ufffd"


def test_what_may_become_a_stop_string_is_held_back(decoder: TextDecoder):
    reply = ReplyText(decoder, [], skip_special=True, stops=("###", "\n\nUser"))
    assert reply.extend(encode(decoder, "ab#")) == "ab"
    assert reply.extend(encode(decoder, "c\n")) == "ab#c"
    assert reply.extend(encode(decoder, "\nUs")) == "ab#c"
    assert reply.extend(encode(decoder, "ed")) == "ab#c\n\nUsed"
    assert reply.finish(encode(decoder, "##"), stop="###") == "ab#c\n\nUsed##"


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_weights_are_exchanged_and_can_be_taken_back():
    model = RaggedModel(random_model(0), device=torch.device("cpu"))
    other = RaggedModel(random_model(1), device=torch.device("cpu"))
    kv = KVSlots(model.cache_shape, max_busy=1, num_slots=1, max_length=64, budget_bytes=1 << 30)
    own, others = model.probe(kv), other.probe(kv)
    assert not torch.allclose(own, others)
    tensors = {name: tensor.clone() for name, tensor in other._model.state_dict().items()}
    replaced = model.exchange(model.stage(tensors))
    assert torch.allclose(model.probe(kv), others, atol=1e-5)
    model.exchange(replaced)
    assert torch.allclose(model.probe(kv), own, atol=1e-5)
    with pytest.raises(WeightsError, match="unknown stranger"):
        model.stage(tensors | {"stranger": torch.zeros(1)})


def test_shortcuts_change_nothing_that_is_computed():
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, vocab_size=64
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.arange(20)[None]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        before = model(ids).logits
        take_shortcuts(model)
        assert model.model.layers[: config.num_hidden_layers] is model.model.layers
        assert len(model.model.layers[:2]) == 2
        assert torch.allclose(model(ids).logits, before, atol=1e-6)


class OddRMSNorm(torch.nn.Module):
    """A norm of the right name that computes something else (as Gemma's does)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(8))
        self.variance_epsilon = 1e-6

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(hidden, (8,), 1 + self.weight, self.variance_epsilon)


def test_a_norm_that_computes_something_else_is_left_alone():
    norm = OddRMSNorm()
    take_shortcuts(torch.nn.Sequential(norm))
    assert "forward" not in vars(norm)
