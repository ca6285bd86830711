"""A reply as OpenAI writes it: one JSON object, or a stream of chunks.

    parser deltas + log-probs ─▶ ChatReply.chunk ─▶ b'data: {"id": …, "choices": [{"index": 0, "delta": {…}}]}\\n\\n'
                                 ChatReply.last_chunks      finish_reason, usage if asked, [DONE]: one piece, because
                                                            it leaves only after the turn is stored
                                 ChatReply.whole            the same reply unstreamed

Every field that a known client needs is always there: id, object, created, model, choices[].index, the role in the
first delta, index, id, type and name in the first delta of a tool call, exactly one finish_reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from slime.chat import Delta

TokenText = Callable[[int], tuple[str, tuple[int, ...]]]
DONE = b"data: [DONE]\n\n"


class ChatReply:
    """Writes one reply.

    Args:
        reply_id: unique for the life of the server, e.g. `chatcmpl-t2m9xq0c5k7v1b3n8d4f6`.
        token_text: spells a token id for log-probs; None when the client wants none.
    """

    def __init__(self, reply_id: str, model: str, *, include_usage: bool, token_text: TokenText | None) -> None:
        self._include_usage = include_usage
        self._token_text = token_text
        self._waiting: list[dict[str, Any]] = []  # log-probs of tokens whose text has not left yet
        self._has_role = False
        self._head = {"id": reply_id, "object": "chat.completion", "created": int(time.time()), "model": model}
        # All chunks begin alike; an event is this, the delta, and the end.
        self._chunk_head = b"data: " + orjson.dumps(self._head | {"object": "chat.completion.chunk"})[:-1]
        self._chunk_head += b',"usage":null' if include_usage else b""

    def tokens(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Note sampled tokens; their log-probs go with the next chunk that leaves."""
        if self._token_text is not None:
            self._waiting.extend(self._entries(token_ids, logprobs))

    def chunk(self, delta: Delta) -> bytes:
        """One event of the stream; the first one also says who speaks."""
        if not self._has_role:
            self._has_role = True
            delta = {"role": "assistant"} | delta
        return self._event(delta, b"null")

    def last_chunks(self, finish_reason: str, usage: dict[str, Any], note: dict[str, str]) -> bytes:
        """The end of the stream; `note` says what became of the turn."""
        delta = {} if self._has_role else {"role": "assistant", "content": ""}
        last = self._event(delta, orjson.dumps(finish_reason))[:-3] + b',"openclaw":' + orjson.dumps(note) + b"}\n\n"
        if self._include_usage:
            body = self._head | {"object": "chat.completion.chunk", "choices": [], "usage": usage}
            last += b"data: " + orjson.dumps(body) + b"\n\n"
        return last + DONE

    def whole(self, message: dict[str, Any], finish_reason: str, usage: dict[str, Any], note: dict[str, str]) -> bytes:
        """The unstreamed reply."""
        choice = {
            "index": 0,
            "message": message | {"refusal": None},
            "logprobs": self._take_logprobs(),
            "finish_reason": finish_reason,
        }
        return orjson.dumps(self._head | {"choices": [choice], "usage": usage, "openclaw": note})

    def _event(self, delta: Delta, finish_reason: bytes) -> bytes:
        choices = b',"choices":[{"index":0,"delta":' + orjson.dumps(delta)
        if self._token_text is not None:
            choices += b',"logprobs":' + orjson.dumps(self._take_logprobs())
        return self._chunk_head + choices + b',"finish_reason":' + finish_reason + b"}]}\n\n"

    def _take_logprobs(self) -> dict[str, Any] | None:
        if self._token_text is None:
            return None
        entries, self._waiting = self._waiting, []
        return {"content": entries}

    def _entries(self, token_ids: Sequence[int], logprobs: Sequence[float]) -> list[dict[str, Any]]:
        assert self._token_text is not None
        spelt = map(self._token_text, token_ids)
        return [
            {"token": text, "logprob": logprob, "bytes": raw, "top_logprobs": ()}
            for (text, raw), logprob in zip(spelt, logprobs, strict=True)
        ]


def usage_of(num_prompt_tokens: int, num_completion_tokens: int) -> dict[str, Any]:
    """Clients compact their history by these numbers: they are counts of ids, never estimates."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
    }


def error_event(error_body: bytes) -> bytes:
    """The event that ends a stream which failed; after it the connection is cut."""
    return b"data: " + error_body + b"\n\n"
