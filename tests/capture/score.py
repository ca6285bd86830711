"""How well capture placed recorded traffic: the answers of `replay` against labels.

    python tests/capture/score.py requests.jsonl.gz labels.jsonl [--without-identity-headers] [--errors]

A request's answer is right when

* continues: it names the same earlier request as the label, or both say that there is none;
* kind: it is the same word;
* conversation, said in three ways, per client, because conversations have no names of their own:
  `mapped`   its conversation is the one that its label's session is mapped to, in the best one-to-one mapping;
  `linked`   it is in the same conversation as its label session's previous request, and the first request of a label
             session is in a conversation that no earlier request of another session is in;
  `pairs`    the F1 of "these two requests belong together" over all pairs of requests of a client.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from openclaw.replay import replay

Answer = Mapping[str, Any]
Label = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Score:
    """Shares of right answers, 0..1, and the rows that were wrong."""

    num_requests: int
    continues: float
    kind: float
    mapped: float
    linked: float
    pairs: float
    wrong: tuple[str, ...]


def score(answers: Iterable[Answer], labels: Sequence[Label]) -> Score:
    """Score the answers to the labelled requests; a labelled request without an answer is wrong in everything."""
    by_request = {(answer["client"], answer["i"]): answer for answer in answers}
    rows = [(label, by_request.get((label["client"], label["i"]), {})) for label in labels]
    known = {(label["client"], label["i"]) for label in labels}
    wrong: list[str] = []
    right: Counter[str] = Counter()
    mapping = _best_mapping(rows)
    linked = _linked(rows)
    for position, (label, answer) in enumerate(rows):
        expected = label["continues"] if (label["client"], label["continues"]) in known else None
        checks = {
            "continues": answer.get("continues", "nothing") == expected,
            "kind": answer.get("kind") == label["kind"],
            "mapped": mapping.get((label["client"], label["session"])) == answer.get("conversation"),
            "linked": linked[position],
        }
        right.update(name for name, is_right in checks.items() if is_right)
        failed = [name for name, is_right in checks.items() if not is_right]
        if failed:
            wrong.append(
                f"{label['client']} {label['i']} {label['session']}: {', '.join(failed)} wrong; expected "
                f"{label['kind']} after {expected}, got {answer.get('kind')} after {answer.get('continues')} "
                f"in {answer.get('conversation')}"
            )
    count = len(rows)
    return Score(
        num_requests=count,
        continues=right["continues"] / count,
        kind=right["kind"] / count,
        mapped=right["mapped"] / count,
        linked=right["linked"] / count,
        pairs=_pairs_f1(rows),
        wrong=tuple(wrong),
    )


def _best_mapping(rows: Sequence[tuple[Label, Answer]]) -> dict[tuple[str, str], str]:
    """Label sessions to conversations, one to one, the largest overlaps first."""
    overlap = Counter(((label["client"], label["session"]), answer["conversation"]) for label, answer in rows if answer)
    mapping: dict[tuple[str, str], str] = {}
    taken: set[str] = set()
    for (session, conversation), _ in overlap.most_common():
        if session not in mapping and conversation not in taken:
            mapping[session] = conversation
            taken.add(conversation)
    return mapping


def _linked(rows: Sequence[tuple[Label, Answer]]) -> dict[int, bool]:
    order = sorted(range(len(rows)), key=lambda position: rows[position][0]["ts"])
    previous: dict[tuple[str, str], Any] = {}
    used: set[Any] = set()
    linked = {}
    for position in order:
        label, answer = rows[position]
        session, conversation = (label["client"], label["session"]), answer.get("conversation")
        linked[position] = previous[session] == conversation if session in previous else conversation not in used
        previous[session] = conversation
        used.add(conversation)
    return linked


def _pairs_f1(rows: Sequence[tuple[Label, Answer]]) -> float:
    by_client: dict[str, list[tuple[Label, Answer]]] = defaultdict(list)
    for row in rows:
        by_client[row[0]["client"]].append(row)
    both = expected = found = 0
    for members in by_client.values():
        for (label, answer), (other_label, other_answer) in combinations(members, 2):
            together = label["session"] == other_label["session"]
            placed = answer.get("conversation") == other_answer.get("conversation")
            both += together and placed
            expected += together
            found += placed
    return 2 * both / (expected + found) if expected + found else 1.0


def read_labels(path: Path) -> list[Label]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--without-identity-headers", action="store_true")
    parser.add_argument("--errors", action="store_true", help="list every wrong row")
    arguments = parser.parse_args()
    result = score(
        replay(arguments.recording, strip_identity=arguments.without_identity_headers), read_labels(arguments.labels)
    )
    if arguments.errors:
        print("\n".join(result.wrong))
    print(
        f"requests={result.num_requests} continues={result.continues:.4f} kind={result.kind:.4f} "
        f"mapped={result.mapped:.4f} linked={result.linked:.4f} pairs={result.pairs:.4f}"
    )


if __name__ == "__main__":
    main()
