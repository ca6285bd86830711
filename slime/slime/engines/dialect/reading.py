"""Answers, as a client reads them: checked before they are believed.

Whatever does not fit (counts, ids, versions, log-probs that are none) is an `EngineError`, never padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import orjson

from slime.engines.dialect.versions import adapter_from_wire, extend_spans, version_from_wire
from slime.errors import EngineError, EngineFailed, EngineRejected, EngineUnavailable
from slime.protocols import Delta, TokenScores
from slime.types import Completion, VersionSpan
from slime.types.turns import are_logprobs

Json = dict[str, Any]
_BUSY = (429, 502, 503, 504)


def read_error(status: int, raw: bytes) -> EngineError:
    """The typed error behind an HTTP error: 4xx is the request's fault, 429 and 5xx are the engine's.

    SGLang words errors in four shapes: `{"error": {"message": …}}`, `{"error": "…"}`, `{"message": …}` and
    `{"error_message": …}`.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    message: Any = raw.decode(errors="replace")
    if isinstance(body, dict):
        message = body.get("error", body.get("message", body.get("error_message", message)))
        if isinstance(message, dict):
            message = message.get("message", message)
    return _typed_error(status, str(message)[:500])


def _typed_error(status: int, message: str) -> EngineError:
    if status == 401:
        return EngineRejected(f"the engine wants a token: set ENGINE_TOKEN ({message})", status)
    if 400 <= status < 500 and status != 429:
        return EngineRejected(f"the engine refused: {message}", status)
    kind = EngineUnavailable if status in _BUSY else EngineFailed
    return kind(f"the engine answered {status}: {message}")


def read_object(raw: bytes) -> Json:
    """An answer's body as an object; an `EngineError` if it is none."""
    try:
        payload = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise EngineError(f"the engine's answer is not JSON: {raw[:80]!r}") from None
    if not isinstance(payload, dict):
        raise EngineError(f"the engine's answer is not an object: {raw[:80]!r}")
    if "error" in payload:  # the way a stream refuses: HTTP 200 and one such event
        error = payload["error"]
        status = error.get("code") if isinstance(error, dict) else None
        raise read_error(status if isinstance(status, int) else 400, raw)
    return payload


def parse_completion(payload: Json, version: int | None = None) -> Completion:
    """The answer of a whole generation; an `EngineError` if ids, log-probs and versions do not fit each other.

    Args:
        version: of the adapter that made it, whatever the engine calls it; None: of the base, which the engine knows.
    """
    delta = StreamReader(version=version).feed(payload)
    if delta.finish_reason is None:
        raise EngineError("the engine answered before it had finished")
    return join_deltas([delta])


def join_deltas(deltas: Sequence[Delta], broke_off: str = "") -> Completion:
    """The completion that a stream amounts to.

    Args:
        broke_off: why it ended early; the versions are then those that its deltas came with.

    Raises:
        EngineError: it ended early, and is not said to have.
    """
    last = deltas[-1]
    finish_reason = broke_off or last.finish_reason
    if finish_reason is None:
        raise EngineError("the stream ended before its last delta")
    spans, position = list(last.spans), 0
    for delta in () if spans else deltas:
        extend_spans(spans, delta.version, position, position + len(delta.token_ids))
        position += len(delta.token_ids)
    return Completion(
        token_ids=tuple(chain.from_iterable(delta.token_ids for delta in deltas)),
        logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
        text="".join(delta.text for delta in deltas),
        finish_reason=finish_reason,
        spans=tuple(spans),
    )


class StreamReader:
    """Turns the events of one stream, cumulative or incremental, into deltas.

    Args:
        version: as in `parse_completion`.

    Text that may still be taken back is held: the beginning of a stop string, or of a character whose bytes are not
    all there yet. The texts of all deltas together are the text of the unstreamed answer.
    """

    def __init__(self, stop: Sequence[str] = (), version: int | None = None) -> None:
        self._stop = stop
        self._version = version
        self._num_tokens = 0
        self._text = ""  # as the engine has told it so far
        self._num_shown = 0  # characters of it that have left in deltas

    def feed(self, payload: Json) -> Delta:
        """The next delta; an `EngineError` if the event contradicts itself or an earlier one."""
        try:
            return self._feed(payload)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise EngineError(f"the engine's answer is not of the dialect: {error!r}") from error

    def _feed(self, payload: Json) -> Delta:
        meta = payload["meta_info"]
        finish = meta["finish_reason"]
        if finish is not None and finish["type"] == "abort" and finish.get("status_code"):
            raise _typed_error(int(finish["status_code"]), str(finish.get("message")))
        ids: list[int] = payload["output_ids"]
        # A request aborted while it waited has no log-prob fields at all.
        entries = meta.get("output_token_logprobs", []) if not ids else meta["output_token_logprobs"]
        total: int = meta["completion_tokens"]
        is_incremental = len(ids) != total
        if is_incremental and self._num_tokens + len(ids) != total:
            raise EngineError(
                f"{self._num_tokens} and {len(ids)} token ids do not make the {total} that were announced"
            )
        seen = 0 if is_incremental else self._num_tokens
        self._text = self._text + payload["text"] if is_incremental else payload["text"]
        if is_incremental and finish is not None and isinstance(finish.get("matched"), str) and not payload["text"]:
            # What has been sent of a stop string cannot be taken back by an engine that sends only what is new.
            self._text = self._text[: len(self._text) - overlap(self._text, finish["matched"])]
        new_ids = tuple(ids[seen:])
        logprobs = _logprobs_of(new_ids, entries[seen:])
        self._num_tokens = total
        version = version_from_wire(meta["weight_version"])
        spans = () if finish is None else _read_spans(meta["weight_versions"], total)
        if self._version is not None:
            version = self._version
            spans = (VersionSpan(version, 0, total),) if spans else ()
        text = self._next_text(is_last=finish is not None)
        return Delta(new_ids, logprobs, text, version, None if finish is None else str(finish["type"]), spans)

    def _next_text(self, *, is_last: bool) -> str:
        text, end = self._text, len(self._text)
        if not is_last:  # characters at the end may still change
            num_broken = end - len(text.rstrip("\ufffd"))
            end -= max([num_broken, *(overlap(text, stop) for stop in self._stop)])
        shown, self._num_shown = self._num_shown, max(self._num_shown, end)
        return text[shown:end]


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`, the whole left aside."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


def _logprobs_of(
    ids: tuple[int, ...], entries: Sequence[Sequence[Any]], *, last_id: int | None = None
) -> tuple[float, ...]:
    """Args: last_id: of the vocabulary, where entries may call it 0."""
    if len(entries) != len(ids):
        raise EngineError(f"{len(ids)} token ids but {len(entries)} log-probs")
    logprobs, named = tuple(map(itemgetter(0), entries)), tuple(map(itemgetter(1), entries))
    if named != ids:
        for token_id, name in zip(ids, named, strict=True):
            if name != token_id and (name, token_id) != (0, last_id):
                raise EngineError(f"the log-prob of token {name} stands where token {token_id} was sampled")
    if not _are_sound(logprobs):
        token_id, logprob = next(pair for pair in zip(ids, logprobs, strict=True) if not _are_sound(pair[1:]))
        raise EngineError(f"the log-prob of token {token_id} is {logprob}")
    return logprobs


def _are_sound(logprobs: Sequence[Any]) -> bool:
    try:
        return are_logprobs(logprobs)
    except TypeError:  # not all numbers: JSON has null for NaN
        return False


def _read_spans(spans: Sequence[Json], num_tokens: int) -> tuple[VersionSpan, ...]:
    read = tuple(
        VersionSpan(version_from_wire(s["version"]), s["start"], s["end"]) for s in spans if s["end"] > s["start"]
    )
    if [0, *(span.end for span in read)] != [*(span.start for span in read), num_tokens]:
        raise EngineError(f"version spans do not follow each other from token 0 to {num_tokens}: {spans}")
    return read


def parse_scores(payload: Json, token_ids: Sequence[int], start: int, top_k: int) -> TokenScores:
    """The answer to `score_body`; an `EngineError` if it speaks of other tokens than those asked about."""
    try:
        meta = payload["meta_info"]
        rows = meta["input_top_logprobs"][1:] if top_k else []
        ids, entries = tuple(token_ids[start:]), meta["input_token_logprobs"][1:]
        called_0 = {token_id for token_id, entry in zip(ids, entries, strict=False) if entry[1] == 0 != token_id}
        return TokenScores(
            logprobs=_logprobs_of(ids, entries, last_id=called_0.pop() if len(called_0) == 1 else None),
            version=version_from_wire(meta["weight_version"]),
            top_ids=tuple(tuple(entry[1] for entry in row) for row in rows),
            top_logprobs=tuple(tuple(entry[0] for entry in row) for row in rows),
        )
    except (KeyError, TypeError, IndexError) as error:
        raise EngineError(f"the engine's answer is not of the dialect: {error!r}") from error


def parse_adapters(payload: Json) -> dict[str, list[int]]:
    """The versions that are loaded of each adapter of ours, oldest first: `{"ada": [6, 7]}`.

    Args:
        payload: the list of models, or the answer to a load.
    """
    try:
        if "loaded_adapters" in payload:
            names = list(payload["loaded_adapters"])
        else:
            names = [card["id"] for card in payload["data"] if card.get("parent") is not None]
        versions: dict[str, list[int]] = {}
        for name, version in filter(None, map(adapter_from_wire, names)):
            versions.setdefault(name, []).append(version)
    except (KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"the engine's answer is not of the dialect: {error!r}") from error
    return {name: sorted(found) for name, found in versions.items()}
