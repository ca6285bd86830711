"""The durable tree of turns: `Store` and what it hands out."""

from slime.store.reads import Changes, LeftOut, Transition
from slime.store.store import Claim, Store

__all__ = ["Changes", "Claim", "LeftOut", "Store", "Transition"]
