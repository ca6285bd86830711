"""What the scripted engine says: a reply to each prompt, its tokens, and the log-probs it declares for them.

The declared distribution is Zipf's law over the vocabulary, turned so that the likeliest id moves with position and
policy version: p(id) = 1 / ((d + 1) · H), where d = (id − anchor) mod V. It sums to one, needs no table, its k
likeliest ids are plain to see, and a token that is credited to the wrong place or version shows in its log-prob.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

DEFAULT_REPLIES = (
    "The answer is 7.",
    "Let me work through that: three and four make seven, so the answer is 7.",
    "Sure! It comes to 7.",
)


@lru_cache(maxsize=16)
def _log_harmonic(vocab_size: int) -> float:
    return math.log(math.fsum(1.0 / rank for rank in range(1, vocab_size + 1)))


def _anchor(position: int, version: int, vocab_size: int) -> int:
    return (position * 7919 + version * 104729) % vocab_size


def declared_logprob(token_id: int, position: int, version: int, vocab_size: int) -> float:
    """The log-prob of an id at a position of prompt plus reply, under a policy version."""
    distance = (token_id - _anchor(position, version, vocab_size)) % vocab_size
    return -math.log(distance + 1) - _log_harmonic(vocab_size)


def declared_top(k: int, position: int, version: int, vocab_size: int) -> list[tuple[float, int]]:
    """The k likeliest ids there, as (log-prob, id), the likeliest first."""
    first = _anchor(position, version, vocab_size)
    log_harmonic = _log_harmonic(vocab_size)
    return [(-math.log(d + 1) - log_harmonic, (first + d) % vocab_size) for d in range(min(k, vocab_size))]


class Vocabulary:
    """Text to ids and back: a token a byte, and one end token, for an engine without a model directory."""

    size = 257
    eos_id = 256
    context_len = 1 << 20

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")


class ModelVocabulary(Vocabulary):
    """The tokenizer of a Hugging Face model directory."""

    def __init__(self, model_dir: Path) -> None:
        config = json.loads((model_dir / "config.json").read_text())
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self.size = int(config["vocab_size"])
        self.eos_id = _end_of_reply(model_dir, config)
        self.context_len = int(config.get("max_position_embeddings", 1 << 20))

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special))


def _end_of_reply(model_dir: Path, config: dict[str, Any]) -> int:
    """Generation settings know the chat model's end token; the architecture's may be the pre-training one."""
    settings = model_dir / "generation_config.json"
    generation = json.loads(settings.read_text()) if settings.exists() else {}
    eos = generation.get("eos_token_id", config.get("eos_token_id", 0))
    return int(eos[0] if isinstance(eos, list) else eos)


@dataclass(frozen=True)
class Prompt:
    """What a reply function is shown.

    Attributes:
        number: how many requests came before this one.
    """

    ids: tuple[int, ...]
    number: int
    vocabulary: Vocabulary

    @cached_property
    def text(self) -> str:
        """The prompt with its special tokens, so that roles can be seen."""
        return self.vocabulary.decode(self.ids, skip_special=False)


ReplyFunction = Callable[[Prompt], str]


@dataclass(frozen=True, slots=True)
class Line:
    """A reply ready to be said: token i adds `pieces[i]` to the text (nothing while a character is incomplete)."""

    ids: tuple[int, ...]
    pieces: tuple[str, ...]


class Script:
    """Replies and the vocabulary they are said in.

    >>> Script(lambda prompt: "Hello." if "Hi" in prompt.text else "What?")
    >>> Script(["first reply", "second reply"], model_dir=Path("tiny"))
    """

    def __init__(self, replies: ReplyFunction | Sequence[str] = DEFAULT_REPLIES, model_dir: Path | None = None) -> None:
        """A sequence of replies is gone through again and again."""
        self.vocabulary = ModelVocabulary(model_dir) if model_dir else Vocabulary()
        self._reply = replies if callable(replies) else _in_turn(replies)
        self._numbers = itertools.count()
        self._line = lru_cache(maxsize=4096)(self._spell)

    def line_for(self, prompt_ids: tuple[int, ...], skip_special: bool) -> Line:
        """What is said to a prompt, the end token included."""
        text = self._reply(Prompt(prompt_ids, next(self._numbers), self.vocabulary))
        return self._line(text, skip_special)

    def _spell(self, text: str, skip_special: bool) -> Line:
        ids = [*self.vocabulary.encode(text), self.vocabulary.eos_id]
        pieces: list[str] = []
        pending: list[int] = []
        for token_id in ids:
            pending.append(token_id)
            piece = self.vocabulary.decode(pending, skip_special)
            if piece.endswith("\ufffd"):
                pieces.append("")
            else:
                pieces.append(piece)
                pending.clear()
        return Line(tuple(ids), tuple(pieces))


def _in_turn(replies: Sequence[str]) -> ReplyFunction:
    if not replies:
        raise ValueError("a script needs at least one reply")
    return lambda prompt: replies[prompt.number % len(replies)]
