"""Names on the wire: of policy versions, and of the adapters that have versions of their own."""

from __future__ import annotations

from slime.errors import EngineError
from slime.types import VersionSpan

FIRST_VERSION = "default"
"""How SGLang calls the weights it was started with; our version 0."""


def version_to_wire(version: int) -> str:
    """`weight_version` of a policy version: 0 → "default", 7 → "7"."""
    return str(version) if version else FIRST_VERSION


def is_version(name: str) -> bool:
    """Whether a `weight_version` is one of ours."""
    return name == FIRST_VERSION or (name.isascii() and name.isdigit())


def version_from_wire(name: str) -> int:
    """The policy version behind a `weight_version`; an `EngineError` for a name that is none of ours."""
    if not is_version(name):
        raise EngineError(f"the engine serves weight version {name!r}, which this program did not publish")
    return 0 if name == FIRST_VERSION else int(name)


def adapter_to_wire(name: str, version: int) -> str:
    """`("ada", 7)` → `"ada@7"`."""
    return f"{name}@{version}"


def adapter_from_wire(wire_name: str) -> tuple[str, int] | None:
    """`"ada@7"` → `("ada", 7)`; None for a name that is none of ours."""
    name, at, version = wire_name.rpartition("@")
    return (name, int(version)) if at and name and version.isascii() and version.isdigit() else None


def extend_spans(spans: list[VersionSpan], version: int, start: int, end: int) -> None:
    """Note that tokens from `start` to `end` were made by `version`; `start` is where the last span ends.

    >>> spans = [VersionSpan(7, 0, 3)]
    >>> extend_spans(spans, 7, 3, 4)
    >>> extend_spans(spans, 8, 4, 5)
    >>> spans
    [VersionSpan(version=7, start=0, end=4), VersionSpan(version=8, start=4, end=5)]
    """
    if spans and spans[-1].version == version:
        spans[-1] = VersionSpan(version, spans[-1].start, end)
    elif end > start:
        spans.append(VersionSpan(version, start, end))
