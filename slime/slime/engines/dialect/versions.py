"""Policy versions on the wire: integers here, strings there."""

from __future__ import annotations

from slime.errors import EngineError

FIRST_VERSION = "default"
"""How SGLang calls the weights it was started with; our version 0."""


def version_to_wire(version: int) -> str:
    """`weight_version` of a policy version: 0 → "default", 7 → "7"."""
    return str(version) if version else FIRST_VERSION


def version_from_wire(name: str) -> int:
    """The policy version behind a `weight_version`; an `EngineError` for a name that is none of ours."""
    if name == FIRST_VERSION:
        return 0
    if not (name.isascii() and name.isdigit()):
        raise EngineError(f"the engine serves weight version {name!r}, which this program did not publish")
    return int(name)
