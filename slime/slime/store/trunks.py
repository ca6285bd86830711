"""Prefix sharing between turns: the fed and sampled ids and the message numbers that a new turn can reuse.

A record is a small difference to its base, the base one to its own, and so on to a root. `load_trunk` walks
that chain in one query; a writer's connection keeps the trunks of conversations that are going on, so that an append
normally reads nothing.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from slime.store.records import ID_BYTES, unsplice

CHAIN = """
WITH RECURSIVE chain (seq, depth) AS (
    SELECT ?, 0
    UNION ALL
    SELECT records.base_seq, depth + 1 FROM chain JOIN records USING (seq) WHERE records.base_seq < records.seq
)
SELECT seq, messages, prompt_shared, prompt_tail, token_ids, reply_id FROM chain JOIN records USING (seq)
ORDER BY depth DESC
"""


@dataclass(frozen=True, slots=True)
class Trunk:
    """A stored turn as something to build on.

    Attributes:
        fed: prompt and completion ids, packed.
        contents: numbers of the request's messages and, last, of the reply.
    """

    seq: int
    fed: bytes
    contents: tuple[int, ...]

    def prompt(self, shared: int, tail: bytes) -> bytes:
        """The packed prompt of a turn on this trunk."""
        return self.fed[: shared * ID_BYTES] + tail

    @property
    def size(self) -> int:
        """Bytes that it takes in memory."""
        return 200 + len(self.fed) + 8 * len(self.contents)


NO_TRUNK = Trunk(0, b"", ())
"""The base of a turn that has none."""


def load_trunk(connection: sqlite3.Connection, seq: int) -> Trunk:
    """The trunk of record `seq`, built from its root upwards."""
    trunk = NO_TRUNK
    for link_seq, messages, shared, tail, token_ids, reply_id in connection.execute(CHAIN, (seq,)):
        contents = (*unsplice(messages, trunk.contents), reply_id)
        trunk = Trunk(link_seq, trunk.prompt(shared, tail) + token_ids, contents)
    return trunk
