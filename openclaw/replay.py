"""Replays recorded traffic through the capture code, for `openclaw-rl replay-traffic FILE`.

    recording (JSON lines, plain or gzip) ─▶ begin at `ts`, finish at `t_end`, in order of time ─▶ one dict per request

Reads two formats: requests of many clients (`i`, `client`, `reply`) and of one OpenClaw gateway (`seq`, `response`).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime.errors import ConfigError
from slime.types import Message

from openclaw.conversations.index import ConversationIndex, IncomingRequest, Placement
from openclaw.requests.identity import identify, strip_identity
from openclaw.requests.wire_formats import read_request

_UNTIMED_REPLY_S = 0.05  # assumed duration of a reply without `t_end`


@dataclass(frozen=True, slots=True)
class RecordedExchange:
    """One recorded request and its reply.

    Attributes:
        number: the recording's number of the request, unique within a client.
        reply: the assistant message as far as it was sent; None when none of it was.
        is_complete: the reply was sent to its end.
    """

    client: str
    number: int
    request: IncomingRequest
    reply: Message | None
    reply_id: str
    is_complete: bool
    ended_at: float


def replay(path: Path | str, *, strip_identity: bool = False) -> Iterator[dict[str, Any]]:
    """Feed a recording to a fresh index; yields one placement per request, in order of arrival.

    >>> next(replay("requests.jsonl.gz"))
    {'client': 'aider', 'i': 0, 'conversation': 's0…', 'kind': 'main', 'continues': None}

    Args:
        strip_identity: drop every header and field by which a client names its session.

    Raises:
        ConfigError: the file is missing or not a recording.
    """
    exchanges = read_recording(Path(path), without_identity=strip_identity)
    index = ConversationIndex()
    placements: dict[int, Placement] = {}
    numbers: dict[str, int] = {}
    for _, is_arrival, position in _events(exchanges):
        exchange = exchanges[position]
        if not is_arrival:
            _end(index, placements.pop(position), exchange)
            continue
        placement = index.begin(exchange.request)
        placements[position] = placement
        numbers[placement.turn_id] = exchange.number
        yield {
            "client": exchange.client,
            "i": exchange.number,
            "conversation": placement.session_id,
            "kind": placement.kind.value,
            "continues": numbers.get(placement.parent_id) if placement.parent_id is not None else None,
        }


def read_recording(path: Path, *, without_identity: bool = False) -> list[RecordedExchange]:
    """The model requests of a recording, in file order; other requests are skipped."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines if line.strip()]
    except OSError as error:
        raise ConfigError(f"cannot read the recording {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not a recording: a line is not valid JSON ({error})") from error
    exchanges = []
    for row in rows:
        if not isinstance(row, dict) or "path" not in row:
            raise ConfigError(f"{path} is not a recording: a line has no request path")
        body = row.get("body")
        if isinstance(body, dict) and (body.get("messages") or body.get("input") is not None):
            exchanges.append(_read_row(row, without_identity=without_identity))
    return exchanges


def _events(exchanges: list[RecordedExchange]) -> list[tuple[float, bool, int]]:
    """(time, whether an arrival, exchange index) in order; at equal times, ends come before arrivals."""
    arrivals = [(exchange.request.arrived_at, True, position) for position, exchange in enumerate(exchanges)]
    ends = [(exchange.ended_at, False, position) for position, exchange in enumerate(exchanges)]
    return sorted(arrivals + ends)


def _end(index: ConversationIndex, placement: Placement, exchange: RecordedExchange) -> None:
    if exchange.reply is None:
        index.fail(placement, ended_at=exchange.ended_at)
        return
    index.finish(
        placement,
        exchange.reply,
        delivered=exchange.is_complete,
        ended_at=exchange.ended_at,
        reply_id=exchange.reply_id,
    )


def _read_row(row: Mapping[str, Any], *, without_identity: bool) -> RecordedExchange:
    headers = {str(name).lower(): str(value) for name, value in row.get("headers") or ()}
    body = row["body"]
    credential = headers.get("authorization") or headers.get("x-api-key") or ""
    if without_identity:
        headers, body = strip_identity(headers, body)
    arrived_at = float(row["ts"])
    if "reply" in row:
        reply, is_complete, reply_id = _read_reply(row["reply"] or {})
    else:
        reply, is_complete, reply_id = _read_gateway_reply(row.get("response") or {})
    return RecordedExchange(
        client=str(row.get("client")) if "i" in row else str(row.get("source", "openclaw")),
        number=int(row.get("i", row.get("seq", 0))),
        request=as_recorded(row["path"], headers, body, credential, arrived_at),
        reply=reply,
        reply_id=reply_id,
        is_complete=is_complete,
        ended_at=max(float(row.get("t_end") or arrived_at + _UNTIMED_REPLY_S), arrived_at + 1e-6),
    )


def as_recorded(
    endpoint: str, headers: Mapping[str, str], body: Mapping[str, Any], credential: str = "", arrived_at: float = 0.0
) -> IncomingRequest:
    """A recorded request of any wire format."""
    return IncomingRequest(read_request(endpoint, body), identify(headers, body), credential, arrived_at)


def _read_reply(reply: Mapping[str, Any]) -> tuple[Message | None, bool, str]:
    if "text" not in reply and not reply.get("calls"):
        return None, False, ""
    message: Message = {"role": "assistant", "content": reply.get("text") or ""}
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call.get("args"), ensure_ascii=False)},
        }
        for call in reply.get("calls") or ()
    ]
    if calls:
        message["tool_calls"] = calls
    return message, bool(reply.get("complete")), str(reply.get("id") or "")


def _read_gateway_reply(response: Mapping[str, Any]) -> tuple[Message | None, bool, str]:
    failure = response.get("fail")
    if response.get("status") != 200:
        return None, False, ""
    message = response.get("message") or {"role": "assistant", "content": ""}
    return message, failure in (None, "", "lengthcut", "empty"), ""
