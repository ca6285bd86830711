"""Turns sessions into trajectories with advantages, under the published name; for inspection, not used in training.

add_interaction("s1", {"role": "assistant", "reward": 1.0}) ─▶ get_training_trajectories(min_turns=3)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from slime.algorithms.returns import compute_gae

GAMMA, LAMBDA = 0.99, 0.95


class SessionAwareProcessor:
    """Collects interactions by session.

    Attributes:
        sessions: by session id, in insertion order; an interaction has `role` and `reward`, and optionally a `value`
            estimate.
    """

    def __init__(self) -> None:
        self.sessions: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)

    def add_interaction(self, session_id: str, interaction: Mapping[str, Any]) -> None:
        self.sessions[session_id].append(interaction)

    def get_training_trajectories(self, min_turns: int = 3) -> list[dict[str, Any]]:
        """The main line (roles user and assistant) of every session of at least `min_turns` interactions."""
        return [
            self.compute_trajectory_advantages([each for each in session if each["role"] in ("user", "assistant")])
            for session in self.sessions.values()
            if len(session) >= min_turns
        ]

    def compute_trajectory_advantages(self, interactions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Generalised advantage estimation over the interactions, γ .99 and λ .95; advantages are [interactions]."""
        rewards = torch.tensor([float(each["reward"]) for each in interactions])
        values = torch.tensor([float(each.get("value", 0)) for each in interactions])
        advantages = compute_gae(rewards, values, GAMMA, LAMBDA)
        return {"interactions": list(interactions), "advantages": advantages}
