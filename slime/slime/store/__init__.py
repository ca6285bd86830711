"""The durable tree of turns: `Store` and what it hands out."""

from slime.store.leases import Claim
from slime.store.reads import Changes
from slime.store.schema import is_store
from slime.store.store import Store

__all__ = ["Changes", "Claim", "Store", "is_store"]
