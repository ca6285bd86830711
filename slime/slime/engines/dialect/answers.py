"""Answers, as an engine writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from slime.engines.dialect.requests import GenerateCall
from slime.engines.dialect.versions import extend_spans, version_to_wire
from slime.types import VersionSpan

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"
"""The last event of every stream."""

Entry = tuple[float | None, int, None]  # (logprob, token id, null)


@dataclass(slots=True)
class Output:
    """All that an engine knows about a request so far; `answer` puts it on the wire.

    Its lists only grow, so the first n tokens are settled for any reader that has been told of n.

    Attributes:
        text: of the tokens that have been told, less what may still be taken back.
        token_ids, logprobs: of the sampled tokens.
        top, chosen: entries of the likeliest ids and of `token_ids_logprob`, a row a sampled token.
        input_logprobs: of the prompt tokens behind `score_start`.
        input_top, input_chosen: as `top` and `chosen`, a row for each of them.
        spans: which version made which sampled token.
        version: what is served, for a request that ends without a token.
        finish_reason: `stopped(…)`, `ran_out(…)` or `aborted(…)`; None while it goes on.
        num_told: tokens and characters that have left in an incremental stream.
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[Entry]] = field(default_factory=list)
    chosen: list[list[Entry]] = field(default_factory=list)
    input_logprobs: list[float] = field(default_factory=list)
    input_top: list[list[Entry]] = field(default_factory=list)
    input_chosen: list[list[Entry]] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    version: int = 0
    cached_tokens: int = 0
    finish_reason: Json | None = None
    num_told: tuple[int, int] = (0, 0)

    def append(self, token_id: int, logprob: float, version: int) -> None:
        """One more sampled token, made by weights `version`."""
        self.logprobs.append(logprob)
        self.token_ids.append(token_id)
        end = len(self.token_ids)
        extend_spans(self.spans, version, end - 1, end)


def stopped(matched: int | str) -> Json:
    return {"type": "stop", "matched": matched}


def ran_out(length: int) -> Json:
    return {"type": "length", "length": length}


def aborted(message: str = "Aborted", status_code: int | None = None) -> Json:
    return {"type": "abort", "message": message, "status_code": status_code}


def answer(call: GenerateCall, output: Output, end: int | None = None, *, is_incremental: bool = False) -> Json:
    """The answer to a request, or one event of its stream.

    Args:
        end: how many of the sampled tokens to tell of; all of them where None.
        is_incremental: events of a stream hold only what is new, as with `--incremental-streaming-output`; counters
            still count everything.
    """
    num_tokens = len(output.token_ids)
    end = num_tokens if end is None else end
    is_over = output.finish_reason is not None and end == num_tokens
    start, first_char = output.num_told
    new_ids = output.token_ids[start:end]
    # True even when newer weights came since: what made the last of the tokens.
    version = next((span.version for span in reversed(tuple(output.spans)) if span.start < end), output.version)
    meta: Json = {
        "id": call.rid,
        "finish_reason": output.finish_reason if is_over else None,
        "prompt_tokens": len(call.input_ids),
        "weight_version": version_to_wire(version),
        "completion_tokens": end,
        "cached_tokens": output.cached_tokens,
    }
    if call.return_logprob:
        scored = call.input_ids[call.score_start :]  # nothing is before the first of them
        inputs = zip([None, *output.input_logprobs], scored, strict=False)
        new = zip(output.logprobs[start:end], new_ids, strict=True)
        meta["input_token_logprobs"] = [(logprob, token_id, None) for logprob, token_id in inputs]
        meta["output_token_logprobs"] = [(logprob, token_id, None) for logprob, token_id in new]
        meta["output_token_logprobs_length"] = end
        rows = slice(start, end if call.max_new_tokens else 1)  # asked for no tokens, it still says what would come
        if call.top_logprobs_num:
            meta["input_top_logprobs"] = [None, *output.input_top] if scored else []
            meta["output_top_logprobs"] = output.top[rows]
        if call.token_ids_logprob:
            meta["input_token_ids_logprobs"] = [None, *output.input_chosen] if scored else []
            meta["output_token_ids_logprobs"] = output.chosen[rows]
    if is_over:
        meta["weight_versions"] = [
            {"version": version_to_wire(span.version), "start": span.start, "end": span.end}
            for span in output.spans or [VersionSpan(version, 0, 0)]
        ]
    if is_incremental and call.stream:
        output.num_told = end, len(output.text)
    return {"text": output.text[first_char:], "output_ids": new_ids, "meta_info": meta}


def sse(payload: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def error_body(message: str) -> bytes:
    """The body of a refusal; in a stream, the payload of its only event."""
    return orjson.dumps({"error": {"message": message}})


def adapters_changed(loaded: Mapping[str, str] | None, reason: str | None = None) -> Json:
    """The answer to a load or unload: the paths of all adapters that are loaded now, or the reason of a refusal."""
    return {"success": reason is None, "error_message": reason, "loaded_adapters": loaded}


def model_list(base: str, adapters: Mapping[str, str]) -> Json:
    """The answer to GET /v1/models: the base, and each adapter with the base as its parent."""
    cards = [(base, base, None), *((name, path, base) for name, path in adapters.items())]
    kind = {"object": "model", "owned_by": "openclaw"}
    return {"object": "list", "data": [{"id": i, **kind, "root": root, "parent": p} for i, root, p in cards]}
