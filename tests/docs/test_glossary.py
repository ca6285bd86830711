"""The glossary: every file that it names for a term uses the term."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "glossary.md"
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
TERMS = [(term, meaning, places) for term, meaning, places in ROWS if term not in ("term", "---")]


@pytest.mark.parametrize(("term", "meaning", "places"), TERMS, ids=[term for term, _, _ in TERMS])
def test_a_term_is_one_sentence_and_used_where_the_glossary_says(term: str, meaning: str, places: str):
    assert meaning.endswith(".")
    assert ". " not in meaning
    named = re.findall(r"\[[^\]]+\]\(([^)]+)\)", places)
    assert named
    for file in named:
        said = " ".join((PAGE.parent / file).read_text(encoding="utf-8").split()).lower().replace("_", " ")
        word = "hint" if term == "hindsight hint" else term.lower()
        assert word in said, f"{file} never says {word!r}"


def test_the_glossary_has_the_words_of_the_field():
    assert {term for term, _, _ in TERMS} >= {
        *("continuous batching", "chunked prefill", "sequence packing", "prefix caching", "KV cache"),
        *("backpressure", "idempotent", "lease", "circuit breaker", "weight sync", "staleness"),
        *("behaviour policy", "proximal policy", "reference policy", "importance ratio"),
    }
