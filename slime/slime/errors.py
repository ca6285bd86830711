"""Every error we raise on purpose, one tree under `OpenClawError`, so that a caller can catch one level."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_ALIKE = 0.6
"""Share of two words that matches, from which on one may be meant for the other."""


class OpenClawError(Exception):
    """Root of the tree."""


class ConfigError(OpenClawError):
    """A flag, variable, YAML key or file of the user's is wrong; one line names the place and the fix. Exit code 2."""


class PluginError(ConfigError):
    """A plug-in's path, name, signature or output does not fit its hook."""


class RequestError(OpenClawError):
    """What a client asked for, or a file of conversations holds, is wrong.

    Attributes:
        field: where, e.g. `messages[2].content`; empty when it is the whole.
        code: what a program may compare, e.g. `context_length_exceeded`; empty when there is none.
    """

    def __init__(self, message: str, field: str = "", code: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.code = code


class UnknownTurn(RequestError):
    """A turn or session is named that was not captured."""


class CaptureIsOff(RequestError):
    """Captured turns are asked about, and the server captures none."""


class RenderError(OpenClawError):
    """The model's chat template cannot express these messages; the message says which and why."""


class PromptTooLong(RenderError):
    """The messages have more tokens than the model can be fed."""


class StoreError(OpenClawError):
    """The turn store could not do what was asked."""


class StoreUnavailable(StoreError):
    """The store is locked, full or slow: the same call may succeed later."""


class IllegalTransition(StoreError):
    """A turn was asked to make a move that `store.states` does not allow."""


class LeaseLost(StoreError):
    """A lease ran out, or another process took it over, before its holder acked."""


class CorruptRecord(StoreError):
    """A stored record does not match its checksum any more, and is never trained; the message names the turn."""


class EngineError(OpenClawError):
    """An engine did not do what it was asked."""


class EngineUnavailable(EngineError):
    """The engine is not reachable, starting, or has no room: the same call may succeed later."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineFailed(EngineUnavailable):
    """The engine took the request and answered 500, or broke off: the engine may be ill, or the request poison."""


class EngineKilled(EngineUnavailable):
    """A signal, not a decision of its own, ended the engine while it was starting: starting it again may succeed."""


class EngineRejected(EngineError):
    """The engine refused the request itself; `status` is its HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class WeightsError(OpenClawError):
    """Weights or a checkpoint that are incomplete, corrupt or of the wrong shape."""


class TrainerError(OpenClawError):
    """A trainer cannot go on."""


class RunStalled(OpenClawError):
    """A run makes samples and trains none of them; the message says what becomes of them."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The tail of an error message that names the nearest valid word, or nothing.

    >>> nearest("--model-pth", ["--model-path", "--port"])
    '; did you mean --model-path?'
    """
    # Two words of very different lengths are never that alike, and looking at one of megabytes takes seconds.
    alike = [one for one in known if 2 * min(len(one), len(word)) >= _ALIKE * (len(one) + len(word))]
    matches = difflib.get_close_matches(word, alike, n=1, cutoff=_ALIKE) if alike else []
    return f"; did you mean {matches[0]}?" if matches else ""


_MAX_SHOWN_CHARS = 80


def shown(value: object) -> str:
    """Input as an error message echoes it: its beginning, on one line.

    >>> shown({"a": 1})
    'dict'
    """
    is_plain = isinstance(value, str | float | bool | None) or (isinstance(value, int) and abs(value) < 2**64)
    text = type(value).__name__
    if is_plain:
        text = repr(value[:_MAX_SHOWN_CHARS] if isinstance(value, str) else value)
    return text if len(text) <= 2 * _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"
