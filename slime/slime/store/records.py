"""Encoding of turns: packed ids, prefix sharing, checksums. Pure functions, no SQL.

A conversation of T turns sends its whole history T times. Stored as it comes that is O(T²); here a turn keeps
only what its *base* (its parent, or the request it repeats) does not have:

    prompt ids   = base's prompt + completion up to where they differ, then an own tail
    message list = runs copied out of base's messages + reply, and content numbers in between

Clients rewrite their history (a clock in the system prompt, a dropped tool result), hence runs and not a prefix.
The checksum covers the turn *as it was given*, so a damaged base is noticed in every turn that is built on it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from slime.errors import StoreError
from slime.store import earlier
from slime.types import Completion, Judgement, Message, SamplingParams, Turn, TurnState, Verdict, VersionSpan

ID_BYTES = 4
"""Width of a stored token id or content number (little-endian int32)."""

PLAIN = b" "
"""Begins JSON that only the standard library reads exactly (lone surrogates, integers beyond 64 bits)."""


def encode_json(value: Any) -> bytes:
    """JSON bytes of anything a client can send, lone surrogates and huge integers included.

    >>> encode_json({"role": "user", "content": "Hi"})
    b'{"role":"user","content":"Hi"}'
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        try:
            return PLAIN + json.dumps(value, separators=(",", ":")).encode("ascii")
        except (TypeError, ValueError) as error:
            raise StoreError(f"cannot be stored as JSON: {error}") from error


def decode_json(body: bytes) -> Any:
    """The value of `encode_json`'s bytes; `ValueError` if they are not JSON."""
    return json.loads(body) if body.startswith(PLAIN) else orjson.loads(body)


def content_hash(body: bytes) -> bytes:
    """The name of a content: 16 bytes that nobody can make two bodies share."""
    return hashlib.blake2b(body, digest_size=16).digest()


def pack_ids(ids: Sequence[int]) -> bytes:
    """Little-endian int32; `StoreError` for an id that does not fit."""
    try:
        return struct.pack(f"<{len(ids)}i", *ids)
    except struct.error as error:
        raise StoreError(f"an id does not fit 32 bits: {error}") from error


def unpack_ids(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // ID_BYTES}i", packed)


def pack_floats(values: Sequence[float]) -> bytes:
    """Little-endian float64: a log-prob reads back as the very number the engine gave."""
    return struct.pack(f"<{len(values)}d", *values)


def unpack_floats(packed: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(packed) // 8}d", packed)


def checksum(parts: Iterable[bytes]) -> int:
    """CRC-32 over parts and their lengths, so that bytes cannot move from one part to the next unnoticed."""
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, zlib.crc32(len(part).to_bytes(8, "little"), crc))
    return crc


def verify(crc: int, parts: Iterable[bytes]) -> None:
    """Raise `ValueError` unless these parts have that checksum."""
    if checksum(parts) != crc:
        raise ValueError("it does not match its checksum")


def shared_ids(first: bytes, second: bytes) -> int:
    """How many leading ids two packed sequences share; one memory comparison, or log₂(n) of them."""
    if second.startswith(first):
        return len(first) // ID_BYTES
    a, b = memoryview(first), memoryview(second)
    low, high = 0, min(len(first), len(second)) // ID_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if a[low * ID_BYTES : middle * ID_BYTES] == b[low * ID_BYTES : middle * ID_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low


def splice(numbers: Sequence[int], base: Sequence[int]) -> bytes:
    """`numbers` as runs copied out of `base` and single numbers: pairs (start, length) and (number, 0).

    >>> unpack_ids(splice([9, 2, 3, 4, 7], base=[1, 2, 3, 4]))
    (9, 0, 1, 3, 7, 0)
    """
    position_in_base = {number: position for position, number in reversed(list(enumerate(base)))}
    pairs: list[int] = []
    index = 0
    while index < len(numbers):
        start = position_in_base.get(numbers[index])
        if start is None:
            pairs += (numbers[index], 0)
            index += 1
            continue
        run = zip(numbers[index:], base[start:], strict=False)
        length = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], run))
        pairs += (start, length)
        index += length
    return pack_ids(pairs)


def unsplice(spliced: bytes, base: Sequence[int]) -> tuple[int, ...]:
    """The numbers that `splice` was given."""
    pairs = unpack_ids(spliced)
    numbers: list[int] = []
    for start, length in zip(pairs[::2], pairs[1::2], strict=True):
        numbers += base[start : start + length] if length else (start,)
    return tuple(numbers)


def identity(turn_id: str, session_id: str, parent_id: str | None, kind: str, created_at: float) -> tuple[bytes, ...]:
    """The checksum's first parts: whose record it is, so that one in the wrong row is noticed."""
    named = (turn_id, session_id, parent_id or "", kind)
    return (*(name.encode("utf-8", "replace") for name in named), struct.pack("<d", created_at))


_USUAL_SAMPLING = [(field.name, field.default) for field in dataclasses.fields(SamplingParams)]


def body_of(turn: Turn) -> dict[str, Any]:
    """What of a turn is neither text that others share nor a long row of numbers."""
    completion = turn.completion
    return {
        "text": None if turn.reply.get("content") == completion.text else completion.text,  # most say it twice
        "finish_reason": completion.finish_reason,
        "spans": [(span.version, span.start, span.end) for span in completion.spans],
        "sampling": {
            name: value for name, usual in _USUAL_SAMPLING if (value := getattr(turn.sampling, name)) != usual
        },
        "retry_of": turn.retry_of,
        "source": turn.source,
        "reason": turn.reason if turn.state is TurnState.ABORTED else "",  # of an exclusion it is in the row
        "template_options": dict(turn.template_options),
        "matching": turn.matching,
        "details": dict(turn.details),
    }


def turn_from(
    body: Mapping[str, Any], *, token_ids: Sequence[int], logprobs: Sequence[float], reply: Message, **facts: Any
) -> Turn:
    """The turn of a `body_of` it, or of an earlier program's; `facts` are its fields that are not in there."""
    values = earlier.turn_values(body)
    text = reply["content"] if values["text"] is None else values["text"]
    spans = tuple(VersionSpan(*span) for span in values["spans"])
    sampling: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values["sampling"].items()
    }
    names = ("retry_of", "source", "reason", "template_options", "matching", "details")
    return Turn(
        completion=Completion(tuple(token_ids), tuple(logprobs), text, values["finish_reason"], spans),
        sampling=SamplingParams(**sampling),
        reply=reply,
        **{name: values[name] for name in names} | facts,
    )


def contents_of(turn: Turn) -> tuple[Any, ...]:
    """What of a turn is stored once for all turns that say the same."""
    return (*turn.messages, list(turn.tools), turn.reply)


def packed_ids(turn: Turn) -> tuple[bytes, bytes, bytes]:
    """Prompt ids, sampled ids and their log-probs."""
    completion = turn.completion
    return pack_ids(turn.prompt_ids), pack_ids(completion.token_ids), pack_floats(completion.logprobs)


def turn_checksum(turn: Turn, contents: Iterable[bytes], ids: Iterable[bytes], body: bytes) -> int:
    """Of a turn as it is given; `contents` are the hashes of its `contents_of`."""
    who = identity(turn.turn_id, turn.session_id, turn.parent_id, turn.kind, turn.created_at)
    return checksum((*who, *contents, *ids, body))


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON, without its judgements."""
    return _fields_but(verdict, "judgements")


def verdict_from(fields: Mapping[str, Any]) -> Verdict:
    """The verdict of `verdict_fields`, or of an earlier program's."""
    values = earlier.verdict_values(fields)
    return Verdict(**{**values, "votes": tuple(values.get("votes", ())), "hints": tuple(values["hints"])})


def encode_judgement(judgement: Judgement) -> bytes:
    """A judgement but for its prompt, which is stored as a content."""
    return encode_json(_fields_but(judgement, "prompt"))


def decode_judgement(body: bytes, prompt: Sequence[Message]) -> Judgement:
    values = earlier.judgement_values(decode_json(body))
    return Judgement(**{**values, "prompt": tuple(prompt), "group": tuple(values.get("group", ()))})


def _fields_but(said: Verdict | Judgement, left_out: str) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(said) if field.name != left_out)
    return {name: getattr(said, name) for name in names} | {"details": dict(said.details)}
