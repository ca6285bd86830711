"""Migration on read: schemas before 4 kept fields that decide something among the details.

    {"details": {"source": "alice", …}} ─▶ {"source": "alice", "details": {…}}

A row of before is known by the field that it lacks. It stays as it is on the disk, under its checksum. Sessions that an
earlier program exported hold the same objects and are read the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]


def turn_values(body: Values) -> Values:
    """`source`, `reason`, `template_options` and `matching` of a turn, out of its details."""
    if "source" in body:
        return body
    details = dict(body["details"])
    return {
        **body,
        "source": str(details.pop("source", "")),
        "reason": str(details.pop("reason", "")),
        "template_options": details.pop("template_options", {}),
        "matching": details.pop("capture", None),
        "details": details,
    }


def verdict_values(body: Values) -> Values:
    """`hints` and the waits of a verdict, out of its details."""
    if "hints" in body:
        return body
    details = dict(body.get("details", {}))
    candidates = details.pop("hint_candidates", None) or [body["hint"]]
    waits = {name: details.pop(name, None) for name in ("retry_after_s", "hint_retry_after_s")}
    said = {name: value for name, value in body.items() if name != "hint"}
    return {**said, **waits, "hints": [hint for hint in candidates if hint], "details": details}


def judgement_values(body: Values) -> Values:
    """The group that a judgement compared, out of its details."""
    if "group" in body:
        return body
    details = dict(body["details"])
    is_relative = body["judge"] == "relative"
    compared = {name: details.pop(name) for name in ("group", "agreement") if is_relative and name in details}
    return {**body, **compared, "details": details}
