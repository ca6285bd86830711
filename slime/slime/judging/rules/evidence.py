"""Evidence: what one piece of a next state says about a reply."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that speaks for a score: `Evidence(-1, "change request", "make it shorter")`."""

    score: int
    kind: str
    words: str
