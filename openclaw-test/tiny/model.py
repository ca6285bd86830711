"""Build the tiny model: from text we generate ourselves to a Hugging Face model directory, in minutes.

    seed ─▶ conversations ─▶ tokenizer ─▶ token ids + learned mask ─▶ Qwen3ForCausalLM ─▶ DIR/{model.safetensors, …}

`build_tiny_model(directory, seed)` trains once and remembers: the directory holds a fingerprint of the sources and
the seed, and is left as it is while that matches. A seed gives the same bytes on one machine whatever else runs there;
another instruction set rounds differently. The model is small enough for a laptop's CPU and good enough to
hold the demo's conversations: it answers small sums in mixed styles and obeys wishes about style.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from openclaw_test.tiny.muon import Muon
from openclaw_test.tiny.text import Conversation, random_conversation
from openclaw_test.tiny.tokenizer import learn_tokenizer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

FINGERPRINT_FILE = "tiny_model.json"
_SOURCES = (
    "people/problems.py",
    "people/styles.py",
    "people/phrases.py",
    "tiny/text.py",
    "tiny/tokenizer.py",
    "tiny/muon.py",
    "tiny/model.py",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Size and training of the tiny model; found by measurement.

    Attributes:
        short_tokens: the budget of the first lesson, which has conversations of at most `short_length` tokens only:
            copying and arithmetic are learned soonest where little else stands around.
        num_tokens: the budget of the second lesson, which has everything.
        prompt_weight: loss weight of tokens the model need not say; a little helps it to read.
        number_weight: loss weight where a number is about to be said: few tokens, and the hardest.
    """

    num_conversations: int = 13_000
    short_length: int = 80
    short_tokens: int = 600_000
    num_tokens: int = 2_100_000
    tokens_per_step: int = 1_600
    prompt_weight: float = 0.05
    number_weight: float = 6.0
    lr: float = 4e-3
    muon_lr: float = 0.015
    weight_decay: float = 0.05
    warmup_share: float = 0.05
    hidden_size: int = 128
    num_layers: int = 3


@dataclass(frozen=True, slots=True)
class Encoded:
    """One conversation as ids, each with its weight in the loss."""

    ids: torch.Tensor
    weights: torch.Tensor


def fingerprint(seed: int) -> str:
    """Hash of everything that decides what `build_tiny_model` makes: its sources and the seed."""
    digest = hashlib.blake2b(digest_size=16)
    for name in _SOURCES:
        digest.update((Path(__file__).parents[1] / name).read_bytes())
    digest.update(str(seed).encode())
    return digest.hexdigest()


def build_tiny_model(directory: str | Path, seed: int = 0, recipe: Recipe | None = None) -> Path:
    """Train the tiny model into `directory`, unless it is there already; returns the directory.

    The model is written beside it and moved into place whole, so an interrupted build leaves nothing half-made.

    >>> build_tiny_model("runs/tiny-model")
    PosixPath('runs/tiny-model')
    """
    target = Path(directory)
    recipe = recipe or Recipe()
    mark = f"{fingerprint(seed)} {recipe}"
    if _read_mark(target) == mark:
        return target
    if target.exists() and any(target.iterdir()) and _read_mark(target) is None:
        raise FileExistsError(f"{target} holds something that is not a tiny model: choose another directory")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with _one_thread():
            tokenizer, model = train(seed, recipe)
        tokenizer.save_pretrained(work)
        model.save_pretrained(work)
        (work / FINGERPRINT_FILE).write_text(json.dumps({"mark": mark}))
        if target.exists():
            shutil.rmtree(target)
        os.replace(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One thread an operation: sums are added in an order that neither cores nor load decide, so bytes stay the same.

    On two busy cores a second thread doubled the time of a build: matrices of this size lose by one that waits.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _read_mark(directory: Path) -> str | None:
    try:
        return str(json.loads((directory / FINGERPRINT_FILE).read_text())["mark"])
    except (OSError, ValueError, KeyError):
        return None


def train(seed: int, recipe: Recipe) -> tuple[PreTrainedTokenizerFast, Qwen3ForCausalLM]:
    """Generate, tokenise, train; shows its progress on the terminal."""
    rng = random.Random(seed)
    conversations = [random_conversation(rng) for _ in range(recipe.num_conversations)]
    tokenizer = learn_tokenizer(render(learn_tokenizer([]), conversations[:4000]))
    corpus = encode(tokenizer, conversations, recipe)
    short = [row for row in corpus if len(row.ids) <= recipe.short_length]
    steps = [*_batches(short, recipe.short_tokens, recipe, rng), *_batches(corpus, recipe.num_tokens, recipe, rng)]
    torch.manual_seed(seed)
    model = new_model(tokenizer, recipe)
    optimizers = _optimizers(model, recipe)
    factor = partial(_lr_factor, num_steps=len(steps), warmup_steps=round(recipe.warmup_share * len(steps)))
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, factor) for optimizer in optimizers]
    figures = TextColumn("step {task.completed}/{task.total}  loss {task.fields[loss]:.3f}")
    with Progress(TextColumn("tiny model"), BarColumn(), figures, TimeRemainingColumn()) as progress:
        task = progress.add_task("train", total=len(steps), loss=float("nan"))
        for batch in steps:
            loss = _loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            progress.update(task, advance=1, loss=loss.item())
    model.train(False)
    return tokenizer, model


def new_model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Qwen3ForCausalLM:
    """An untrained model of the recipe's size for the tokenizer, with its stop tokens and plain sampling."""
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=recipe.hidden_size,
            intermediate_size=3 * recipe.hidden_size,
            num_hidden_layers=recipe.num_layers,
            num_attention_heads=recipe.hidden_size // 32,
            num_key_value_heads=recipe.hidden_size // 64,
            head_dim=32,
            max_position_embeddings=tokenizer.model_max_length,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def render(tokenizer: PreTrainedTokenizerFast, conversations: list[Conversation]) -> list[str]:
    """Each conversation as the text its chat template makes of it."""
    apply: Callable[..., Any] = tokenizer.apply_chat_template
    return [str(apply(talk.messages, tools=talk.tools, tokenize=False)) for talk in conversations]


def encode(tokenizer: PreTrainedTokenizerFast, conversations: list[Conversation], recipe: Recipe) -> list[Encoded]:
    """Each conversation's ids, with the weights of the recipe: replies marked as learned count, the rest hardly."""
    rows = tokenizer(render(tokenizer, conversations), add_special_tokens=False)["input_ids"]
    opening = tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    # The weight hangs on the token before, never on the one to be said: else numbers would be said too often.
    before_numbers = {tokenizer.convert_tokens_to_ids(token) for token in ("Ġ", "{", "**", "Ġ**", *"0123456789")}
    encoded = []
    for ids, talk in zip(rows, conversations, strict=True):
        is_learned = _learned(ids, talk.is_learned, opening, tokenizer.eos_token_id)
        weights = [1.0 if learned else recipe.prompt_weight for learned in is_learned]
        for index, before in enumerate(ids[:-1], start=1):
            if before in before_numbers:
                weights[index] *= recipe.number_weight
        encoded.append(Encoded(torch.tensor(ids), torch.tensor(weights)))
    return encoded


def _learned(ids: list[int], is_learned: list[bool], opening: list[int], stop_id: int) -> list[bool]:
    """Spread the flag of each reply over its tokens, from after the role line to the stop token."""
    flags, position = [False] * len(ids), 0
    for learned in is_learned:
        while ids[position : position + len(opening)] != opening:
            position += 1
        position += len(opening)
        end = ids.index(stop_id, position) + 1
        flags[position:end] = [learned] * (end - position)
        position = end
    return flags


def _batches(corpus: list[Encoded], num_tokens: int, recipe: Recipe, rng: random.Random) -> Iterator[list[Encoded]]:
    """`num_tokens` tokens in batches of rows of like length (so that padding is next to nothing), in random order."""
    while num_tokens > 0:
        # A little noise in the sorting keeps the batches of one epoch from being those of the next.
        rows = sorted(corpus, key=lambda row: len(row.ids) + 4 * rng.random())
        epoch: list[list[Encoded]] = [[]]
        for row in rows:
            if epoch[-1] and (len(epoch[-1]) + 1) * len(row.ids) > recipe.tokens_per_step:
                epoch.append([])
            epoch[-1].append(row)
        rng.shuffle(epoch)
        for batch in epoch:
            yield batch
            num_tokens -= sum(len(row.ids) for row in batch)
            if num_tokens <= 0:
                return


def _loss(model: Qwen3ForCausalLM, batch: list[Encoded]) -> torch.Tensor:
    """Weighted mean of the negative log-probs.

    Rows are padded on the right and attention is causal: no token sees padding, so no attention mask is needed.
    """
    ids = pad_sequence([row.ids for row in batch], batch_first=True)
    weights = pad_sequence([row.weights for row in batch], batch_first=True)[:, 1:].flatten()
    hidden = model.model(ids, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
    counts = weights.nonzero().squeeze(1)
    losses = functional.cross_entropy(model.lm_head(hidden[counts]), ids[:, 1:].flatten()[counts], reduction="none")
    return (losses * weights[counts]).sum() / weights.sum()


def _optimizers(model: Qwen3ForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers (it needs fewer steps), AdamW for the embedding and the norms."""
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    outer = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        Muon(inner, lr=recipe.muon_lr, weight_decay=recipe.weight_decay),
        torch.optim.AdamW(outer, lr=recipe.lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def _lr_factor(step: int, num_steps: int, warmup_steps: int) -> float:
    """Linear warm-up, then a cosine down to nothing."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, num_steps - warmup_steps)))
