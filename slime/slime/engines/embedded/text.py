"""From ids to text, a few tokens at a time, and never half a character.

A token may hold part of a UTF-8 character, and a decoder may treat the start of a text in its own way; so new tokens
are always decoded together with a few before them, and text that ends in a replacement character waits for the next.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from pathlib import Path

from tokenizers import Tokenizer

from slime.engines.dialect.reading import overlap
from slime.errors import ConfigError

_CONTEXT = 5
"""Prompt tokens that the first output tokens are decoded with (as many as in SGLang)."""


class TextDecoder:
    """The tokenizer of the served model; without one (`tokenizer.json` missing) every text is empty."""

    def __init__(self, model_dir: str | Path) -> None:
        path = Path(model_dir) / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path)) if path.is_file() else None
        except Exception as error:  # tokenizers raises bare Exception
            raise ConfigError(f"{path} is no tokenizer: {error}") from error

    def decode(self, ids: Items[int], *, skip_special: bool) -> str:
        if self._tokenizer is None or not ids:
            return ""
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special))

    def find_stop(self, output_ids: Items[int], stops: Items[str]) -> str | None:
        """The first of these strings that the end of a reply, special tokens spelled out, contains.

        Looks as many tokens back as the longest has characters: a token holds at least part of one.
        """
        tail = self.decode(list(output_ids[-(max(len(stop.encode()) for stop in stops) + 1) :]), skip_special=False)
        return next((stop for stop in stops if stop in tail), None)


class ReplyText:
    """The text of one growing reply.

    >>> reply = ReplyText(decoder, prompt_ids, skip_special=True)
    >>> reply.extend([9707]), reply.extend([11, 1879])
    ('Hello', 'Hello, world')
    """

    def __init__(
        self, decoder: TextDecoder, prompt_ids: Items[int], *, skip_special: bool, stops: Items[str] = ()
    ) -> None:
        self._decoder, self._skip_special, self._stops = decoder, skip_special, stops
        self._ids = list(prompt_ids[-_CONTEXT:])
        self._context = 0  # decode from here, ...
        self._settled = len(self._ids)  # ... of which the text up to here is out already
        self._text = ""
        self._pending = ""

    def extend(self, ids: Items[int]) -> str:
        """Take in further ids; all text so far that is sure to stay."""
        self._ids.extend(ids)
        known = self._decoder.decode(self._ids[self._context : self._settled], skip_special=self._skip_special)
        whole = self._decoder.decode(self._ids[self._context :], skip_special=self._skip_special)
        self._pending = whole[len(known) :]
        if not self._pending.endswith("�"):
            self._text += self._pending
            self._pending = ""
            self._context, self._settled = self._settled, len(self._ids)
        shown = self._text + self._pending.rstrip("�")
        return shown[: len(shown) - self._undecided(shown)]

    def finish(self, ids: Items[int], *, stop: str | None = None, keep_stop: bool = False) -> str:
        """Take in the last ids; the whole text, without (or with) the stop string and whatever follows it."""
        self.extend(ids)
        text = self._text + self._pending
        if stop is not None and (place := text.find(stop)) >= 0:
            return text[: place + len(stop)] if keep_stop else text[:place]
        return text

    def _undecided(self, text: str) -> int:
        """Length of the longest end of the text that may be, or begin, a stop string."""
        places = ((text.find(stop), stop) for stop in self._stops)
        return max((overlap(text, stop) if at < 0 else len(text) - at for at, stop in places), default=0)
