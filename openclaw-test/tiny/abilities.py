"""Measures a tiny model's abilities: sums without a style request, and sums in a requested style.

model directory ─▶ held-out problems, half with the wish beside them, half in the system prompt ─▶ `Abilities`
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from openclaw_test.people import phrases
from openclaw_test.people.personas import TINY
from openclaw_test.people.problems import Problem, final_answer, random_problem
from openclaw_test.people.styles import RULES, has_bold, has_box, has_numbered_list, is_plain
from slime.types import Message
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

_FORMATS = {"bold": has_bold, "list": has_numbered_list, "boxed": has_box}


@dataclass(frozen=True, slots=True)
class Abilities:
    """Shares of replies sampled at temperature 1.

    >>> Abilities(accuracy=0.98, plain=0.05, kept={"list": 0.99}, right={"list": 0.96}).lowest
    0.96

    Attributes:
        accuracy: right answers without a style request.
        plain: plain replies among those; rare by construction, so that there is something to learn.
        kept: replies that keep each wish.
        right: right answers under each wish.
    """

    accuracy: float
    plain: float
    kept: dict[str, float]
    right: dict[str, float]

    @property
    def lowest(self) -> float:
        """The minimum of the shares that should be high."""
        return min(self.accuracy, *self.kept.values(), *self.right.values())


def measure_abilities(model_dir: Path, num_unasked: int = 400, num_wished: int = 200) -> Abilities:
    """Ask a built model `num_unasked` problems without a wish and `num_wished` with each; CPU, about a minute."""
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    model.train(False)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    rng = random.Random(0)
    problems = [random_problem(rng, "held_out") for _ in range(num_unasked)]
    asked: list[list[Message]] = [[{"role": "user", "content": phrases.ask(p.text, rng)}] for p in problems]
    torch.manual_seed(0)
    unasked = sample_replies(model, tokenizer, asked)
    accuracy, plain = _share_right(problems, unasked), statistics.fmean(map(is_plain, unasked))
    rng = random.Random(0)
    torch.manual_seed(0)
    kept, right = {}, {}
    for name in phrases.WISHES:
        problems = [random_problem(rng, "held_out") for _ in range(num_wished)]
        talks: list[list[Message]] = []
        for index, problem in enumerate(problems):
            wish = phrases.wish(name, rng)
            if index % 2:
                talks.append([{"role": "user", "content": f"{problem.text} {wish}"}])
            else:
                system = {"role": "system", "content": f"You are a helpful assistant. {wish}"}
                talks.append([system, {"role": "user", "content": problem.text}])
        replies = sample_replies(model, tokenizer, talks)
        rule = _FORMATS.get(name) or RULES[name]
        kept[name] = statistics.fmean(map(rule, replies))
        right[name] = _share_right(problems, replies)
    return Abilities(accuracy, plain, kept, right)


def _share_right(problems: Sequence[Problem], replies: Sequence[str]) -> float:
    return statistics.fmean(final_answer(r) == p.answer for p, r in zip(problems, replies, strict=True))


def sample_replies(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, conversations: Sequence[list[Message]]
) -> list[str]:
    """Sample one reply per conversation in a single batch, at temperature 1, from torch's global generator."""
    tokenizer.padding_side = "left"
    prompts = [
        str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        for messages in conversations
    ]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.inference_mode():
        ids = model.generate(  # type: ignore[operator]
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=TINY.max_tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
        )
    return tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
