"""Loads the turns that a request may continue from the store into the in-memory index.

    request ─ wanted: call ids, keys of the last replies, its session's name ─▶ one look-up ─▶ ConversationIndex.restore

The cache is empty after a restart and evicts the least used turns: a conversation is loaded again when it continues.
A cache hit costs no look-up, and a key is looked up only once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Container
from itertools import islice

from slime.errors import StoreError, StoreUnavailable
from slime.store import Store

from openclaw.conversations.index import ConversationIndex, IncomingRequest, hash_credential
from openclaw.conversations.known_turns import MAX_RECENT, KnownTurn
from openclaw.conversations.stored_turns import (
    MAX_WANTED,
    keys_of,
    keys_of_known,
    owner_of,
    session_key,
    wanted_keys,
    wanted_turns,
)
from openclaw.requests.reading import Reading
from openclaw.requests.slices import in_slices

log = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""How long a request waits for the look-up; then it starts a new conversation."""
NAMED_PATIENCE_S = 3.0
"""How long feedback waits for the session it names; then it is refused and can be retried."""
_MAX_ASKED = 50_000  # keys already looked up
_BATCH = 64  # turns of an older store version that get keys in one transaction
_PAUSE_S = 0.02


class Recall:
    """Fills the index from the store on demand.

    Attributes:
        index: the in-memory index.
    """

    def __init__(self, store: Store) -> None:
        self.index = ConversationIndex(on_forget=self._on_forget)
        self._store = store
        self._asked: OrderedDict[bytes, None] = OrderedDict()
        self._store_has_more = False

    async def start(self) -> None:
        """Load the most recent turns; all others are loaded on demand."""
        notes = await self._store.newest_notes(MAX_RECENT)
        self._store_has_more = bool(notes)
        self.index.restore(notes, clock_offset_s=_clock_offset_s())

    async def give_keys(self) -> None:
        """Backfill the keys of turns that an older version stored without, newest first, in small batches."""
        while True:
            below, notes = await self._store.unkeyed(_BATCH)
            if notes or below > 1:
                await self._store.add_keys({note.turn_id: keys_of(note) for note in notes}, below)
            if below <= 1:
                return
            await asyncio.sleep(_PAUSE_S)

    async def before(self, request: IncomingRequest, reading: Reading) -> Container[str] | None:
        """Load the turns that a request may continue.

        Returns:
            Session ids known to be unused by other credentials; None when only cached sessions exist.
        """
        if not self._store_has_more:
            return None
        credential = hash_credential(request.credential)
        known = self.index.known(credential)
        turn_ids = [turn_id for turn_id in wanted_turns(reading, known) if self._is_new(turn_id.encode())]
        wanted = await in_slices(islice(wanted_keys(reading, known, credential), 2 * MAX_WANTED))
        keys = list(filter(self._is_new, wanted))
        name = request.identity.or_named_in(reading.raw_first_user).name
        names = [name] if name is not None and name not in known.newest_session_of else []
        if not (turn_ids or keys or names):
            return ()
        keys += [session_key(name, credential) for name in names]
        try:
            async with asyncio.timeout(PATIENCE_S):
                recalled = await self._store.recall(keys, turn_ids, names)
        except (StoreError, TimeoutError) as error:
            log.warning("cannot read earlier turns error=%s", error)
            return ()
        own = [note for note in recalled.notes if owner_of(note) == credential]
        self.index.restore(own, clock_offset_s=_clock_offset_s())
        for key in (*keys, *(turn_id.encode() for turn_id in turn_ids)):
            self._asked[key] = None
        while len(self._asked) > _MAX_ASKED:
            self._asked.popitem(last=False)
        owners = {name: owner_of(note) for name, note in recalled.beginnings.items()}
        return [name for name in names if owners.get(name, credential) == credential]

    async def session_named(self, name: str) -> None:
        """Load the newest turns of the session of that name, of any credential.

        Raises: StoreUnavailable when the store times out.
        """
        if not self._store_has_more:
            return
        try:
            async with asyncio.timeout(NAMED_PATIENCE_S):
                beginning = (await self._store.recall((), (), [name])).beginnings.get(name)
                if beginning is not None and (owner := owner_of(beginning)) is not None:
                    recalled = await self._store.recall([session_key(name, owner)])
                    self.index.restore(recalled.notes, clock_offset_s=_clock_offset_s())
        except TimeoutError:
            raise StoreUnavailable(f"looking up the session in the store took over {NAMED_PATIENCE_S:g} s") from None

    def _is_new(self, key: bytes) -> bool:
        return key not in self._asked

    def _on_forget(self, turn: KnownTurn, credential: str) -> None:
        self._store_has_more = True
        self._asked.pop(turn.turn_id.encode(), None)
        for key in keys_of_known(turn, credential):
            self._asked.pop(key, None)


def _clock_offset_s() -> float:
    """The offset from Unix time to the index's clock."""
    return time.monotonic() - time.time()
