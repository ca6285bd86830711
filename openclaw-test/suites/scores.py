"""Scores on held-out problems: how often a preference is satisfied unasked, and how often the answer is right.

    held-out problems ─▶ replies (from a model in this process, or from a server) ─▶ `Score` of each

Nothing of a conversation goes before the problem and no wish about style goes with it, so a satisfied rule is
something the model does by itself. Problems are drawn by a seed: the same seed asks the same questions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from openclaw_test.people import phrases
from openclaw_test.people.problems import Problem, final_answer, random_problem
from openclaw_test.people.styles import RULES
from slime.types import Message

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MAX_NEW_TOKENS = 64
"""Longer than any reply the tiny model has been taught."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a set of first replies to held-out problems is like.

    >>> Score(num_replies=200, accuracy=0.985, satisfaction={"plain": 0.06, "short": 0.05})

    Attributes:
        accuracy: share of replies whose last number is the right answer.
        satisfaction: share of replies that keep each rule, by name.
    """

    num_replies: int
    accuracy: float
    satisfaction: dict[str, float]


def held_out_questions(num_replies: int, seed: int) -> list[tuple[Problem, str]]:
    """Problems of the held-out split, each with the words it is asked in."""
    rng = random.Random(seed)
    problems = [random_problem(rng, "held_out") for _ in range(num_replies)]
    return [(problem, phrases.ask(problem.text, rng)) for problem in problems]


def score_replies(problems: Sequence[Problem], replies: Sequence[str]) -> Score:
    """Apply every rule, and compare answers."""
    num = len(replies)
    right = sum(final_answer(reply) == problem.answer for problem, reply in zip(problems, replies, strict=True))
    satisfaction = {name: sum(map(rule, replies)) / num for name, rule in RULES.items()}
    return Score(num, right / num, satisfaction)


def score_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, num_replies: int = 200, seed: int = 0
) -> Score:
    """Score a model in this process, sampling at temperature 1."""
    questions = held_out_questions(num_replies, seed)
    conversations: list[list[Message]] = [[{"role": "user", "content": text}] for _, text in questions]
    torch.manual_seed(seed)
    replies = sample_replies(model, tokenizer, conversations)
    return score_replies([problem for problem, _ in questions], replies)


def sample_replies(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, conversations: Sequence[list[Message]]
) -> list[str]:
    """One reply to each conversation, all sampled together at temperature 1 from torch's global generator."""
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
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
        )
    return tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)


async def score_server(
    client: AsyncOpenAI, model_name: str, num_replies: int = 200, seed: int = 0, concurrency: int = 16
) -> Score:
    """Score what a server answers, through the same client as everybody's.

    Requests say `X-Turn-Type: side`, so that measuring never becomes training data.
    """
    questions = held_out_questions(num_replies, seed)
    places = asyncio.Semaphore(concurrency)

    async def answer(text: str) -> str:
        async with places:
            completion = await client.chat.completions.create(
                model=model_name,
                messages=[{"role": "user", "content": text}],
                temperature=1.0,
                max_tokens=MAX_NEW_TOKENS,
                extra_headers={"X-Turn-Type": "side"},
            )
        return completion.choices[0].message.content or ""

    replies = await asyncio.gather(*(answer(text) for _, text in questions))
    return score_replies([problem for problem, _ in questions], list(replies))
