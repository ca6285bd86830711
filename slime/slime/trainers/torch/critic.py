"""The critic (value model): the expected return before each trainable token.

    FlatBatch ─▶ backbone (own, or the policy's hidden states) ─▶ value head, H → 1, float32 ─▶ values at the predictors

The value of a token is that of everything before it. It is learned from the returns of the batch that it also gave
the baseline for, within `value_clip` of what it said then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from slime.algorithms.reductions import sum_of_means
from slime.algorithms.returns import value_loss
from slime.config.sections import LoraConfig, LossConfig, TrainerConfig
from slime.data.rows import FlatBatch
from slime.trainers.ranks import Ranks
from slime.trainers.torch.optimizer import Applied, Optimizer
from slime.trainers.torch.policy import Policy

_PREFIX = "critic."
_COUNTS = "critic.counts"


class Critic:
    """A value head, its backbone if it has one of its own, and their optimizer.

    It starts as zero everywhere, so that the first advantages are those of no critic at all.

    Args:
        policy: whose hidden states the head reads, without a gradient into them, unless it has a backbone of its own:
            a model that is trained with the head.
        lora: of that backbone, which is an adapter too where the policy is one.
    """

    def __init__(
        self, policy: Policy, model_dir: Path, trainer: TrainerConfig, loss: LossConfig, lora: LoraConfig | None
    ) -> None:
        backbone = None
        if loss.critic == "own":
            backbone = Policy(model_dir, policy.device, policy.compute_dtype, lora=lora, seed=trainer.seed)
            if trainer.gradient_checkpointing:
                backbone.checkpoint_activations()
        self._backbone = backbone
        self._value_clip = loss.value_clip
        hidden_size = policy.model.get_output_embeddings().weight.shape[1]
        self.head = torch.nn.Linear(hidden_size, 1, device=policy.device, dtype=torch.float32)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        parameters: dict[str, Tensor] = {f"head.{name}": p for name, p in self.head.named_parameters()}
        if backbone is not None:
            parameters |= {f"backbone.{name}": p for name, p in backbone.body_parameters().items()}
        self._parameters = parameters
        self._moved = backbone.refresh if backbone is not None else lambda: None
        own = dataclasses.replace(trainer, lr=loss.critic_lr or trainer.lr)
        self._optimizer = Optimizer(parameters, own, self._moved)

    def values(self, flat: FlatBatch, policy_hidden: Tensor) -> Tensor:
        """What is expected before each trainable token: [N].

        Args:
            policy_hidden: [T, H] of the policy; read only where the critic has no backbone of its own.
        """
        hidden = policy_hidden.detach() if self._backbone is None else self._backbone.hidden_states(flat)
        values: Tensor = self.head(hidden[flat.predictors].float()).squeeze(-1)
        return values

    def accumulate(self, flat: FlatBatch, policy_hidden: Tensor, weights: Tensor, divisor: int) -> float:
        """Add one micro-batch's gradient; its share of the value loss.

        Args:
            weights: [N] of the reduction.
            divisor: of the step.
        """
        streams = flat.streams
        each = value_loss(self.values(flat, policy_hidden), streams["old_values"], streams["returns"], self._value_clip)
        loss = sum_of_means(each * streams["has_reward"], weights) / divisor
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def step(self, loss: float, ranks: Ranks, *, is_skipped: bool) -> Applied:
        """Sum gradients over the ranks and take one optimizer step.

        Args:
            is_skipped: leave it out; the gradients are forgotten.
        """
        if is_skipped:
            self.discard()
            return Applied(0.0, 0.0, skipped="so was the policy's step")
        ranks.sum_gradients(self._parameters.values())
        return self._optimizer.apply(loss)

    def discard(self) -> None:
        """Forget the gradients that have been accumulated."""
        self._optimizer.discard()

    def state(self) -> dict[str, Tensor]:
        """Parameters, moments and step counts by `critic.<name>`, for a checkpoint."""
        counts = torch.tensor([self._optimizer.num_steps, self._optimizer.num_skipped])
        own = {name: p.detach() for name, p in self._parameters.items()} | self._optimizer.state()
        return {_COUNTS: counts, **{f"{_PREFIX}{name}": tensor for name, tensor in own.items()}}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state that was saved; from one without a critic, go on from where it is."""
        if _COUNTS not in state:
            return
        own = {name.removeprefix(_PREFIX): tensor for name, tensor in state.items() if name.startswith(_PREFIX)}
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(own[name])
        self._moved()
        num_steps, num_skipped = (int(count) for count in state[_COUNTS])
        self._optimizer.restore(own, num_steps=num_steps, num_skipped=num_skipped)
