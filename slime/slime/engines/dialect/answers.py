"""Answers, as an engine writes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from slime.engines.dialect.requests import GenerateCall
from slime.engines.dialect.versions import version_to_wire
from slime.types import VersionSpan

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"
"""The last event of every stream."""

Entry = tuple[float | None, int, None]  # (logprob, token id, null)


@dataclass(slots=True)
class Output:
    """All that an engine knows about a request so far; `answer` puts it on the wire.

    Attributes:
        finish_reason: `stopped(…)`, `ran_out(…)` or `aborted(…)`; None while it goes on.
        version: what the engine serves now.
        spans: which version made which token; must cover all of `token_ids` once finished.
        input_logprobs: (logprob, id, None) from `logprob_start_len` on, the first with logprob None.
        input_top, input_ids_logprobs: a row of entries a position, from `logprob_start_len` on; the first is None.
        output_top, output_ids_logprobs: a row of entries a sampled token.
    """

    prompt_tokens: int
    version: int = 0
    cached_tokens: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    finish_reason: Json | None = None
    input_logprobs: list[Entry] = field(default_factory=list)
    input_top: list[list[Entry] | None] | None = None
    input_ids_logprobs: list[list[Entry] | None] | None = None
    output_top: list[list[Entry]] | None = None
    output_ids_logprobs: list[list[Entry]] | None = None


def stopped(matched: int | str) -> Json:
    return {"type": "stop", "matched": matched}


def ran_out(length: int) -> Json:
    return {"type": "length", "length": length}


def aborted(message: str = "Aborted", status_code: int | None = None) -> Json:
    return {"type": "abort", "message": message, "status_code": status_code}


def answer(call: GenerateCall, output: Output, *, tokens_sent: int = 0, chars_sent: int = 0) -> Json:
    """The answer to a request, or one event of its stream.

    With `tokens_sent` and `chars_sent` above 0 it holds only what came after them, as with
    `--incremental-streaming-output`; counters still count everything.
    """
    new_ids = output.token_ids[tokens_sent:]
    version = version_to_wire(output.version)
    meta: Json = {
        "id": call.rid,
        "finish_reason": output.finish_reason,
        "prompt_tokens": output.prompt_tokens,
        "weight_version": version,
        "completion_tokens": len(output.token_ids),
        "cached_tokens": output.cached_tokens,
    }
    if call.return_logprob:
        meta["input_token_logprobs"] = output.input_logprobs
        meta["output_token_logprobs"] = [
            (logprob, token_id, None) for logprob, token_id in zip(output.logprobs[tokens_sent:], new_ids, strict=True)
        ]
        meta["output_token_logprobs_length"] = len(output.token_ids)
        if call.top_logprobs_num:
            meta["input_top_logprobs"] = output.input_top or []
            meta["output_top_logprobs"] = (output.output_top or [])[tokens_sent:]
        if call.token_ids_logprob:
            meta["input_token_ids_logprobs"] = output.input_ids_logprobs or []
            meta["output_token_ids_logprobs"] = (output.output_ids_logprobs or [])[tokens_sent:]
    if output.finish_reason is not None:
        meta["weight_versions"] = [
            {"version": version_to_wire(span.version), "start": span.start, "end": span.end} for span in output.spans
        ] or [{"version": version, "start": 0, "end": 0}]
    return {"text": output.text[chars_sent:], "output_ids": new_ids, "meta_info": meta}


def sse(payload: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def error_body(message: str) -> bytes:
    """The body of a refusal; in a stream, the payload of its only event."""
    return orjson.dumps({"error": {"message": message}})
