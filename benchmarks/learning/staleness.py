"""Measures the worth of off-policy corrections for samples four updates old, on a task with a known optimum.

    python benchmarks/learning/staleness.py [--staleness 4] [--updates 400] [--seeds 8] [--lr 8] [--baseline none]

A bandit: contexts with replies of a few tokens, each token an arm with its own value. A reply's score is its regret,
between −1 and 0, with noise, as from users who only complain. The policy is a table of logits, so its expected reward
is computed exactly. Replies are sampled by the weights of `staleness` updates ago, as by engines that serve during
training; the loss is the library's own. Every correction, and a run with fresh samples, sees the same task and random
numbers.

Without a correction, lowering actions that the policy has already abandoned raises its current ones, good or bad, and
it converges too early. `--baseline group` centres scores within the replies to one context, so these updates cancel,
and on this task stale samples do no harm with or without a correction; a person's feedback has no group.

One line of JSON is printed: for each way the final worth, its share of the fresh run's, mean over seeds with standard
error, and the worst seed.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from slime.algorithms.advantages import group_advantages
from slime.algorithms.objective import policy_objective
from slime.config.sections import LossConfig
from slime.plugins.settings import plugin_settings
from torch import Tensor

NUM_CONTEXTS, NUM_TOKENS, NUM_ARMS = 12, 3, 8
GROUP_SIZE = 8
NOISE = 0.1
CORRECTIONS = ("tis", "decoupled", "mis", "icepop", "none")


@dataclass(frozen=True)
class Task:
    """Arms of every token of every context of every seed.

    Attributes:
        worth: [S, C, T, A], between 0 and 1.
    """

    worth: Tensor

    @classmethod
    def make(cls, num_seeds: int) -> Task:
        """A task for each seed from 0 on."""
        shape = (NUM_CONTEXTS, NUM_TOKENS, NUM_ARMS)
        return cls(torch.stack([torch.rand(shape, generator=_generator(seed)) for seed in range(num_seeds)]))

    def expected_worth(self, logits: Tensor) -> Tensor:
        """What replies are worth on average, exactly: [S, C, T, A] → [S], as a share of the best there is."""
        earned = (logits.softmax(-1) * self.worth).sum(-1).mean((1, 2))
        return earned / self.worth.max(-1).values.mean((1, 2))


def train(task: Task, correction: str, options: argparse.Namespace, staleness: int) -> Tensor:
    """Train one policy a seed; the expected worth of each at the end, [S]."""
    config = plugin_settings(LossConfig(behaviour_correction=correction, mis_level="sequence", kl_loss_coef=0.0))  # type: ignore[arg-type]
    logits = torch.zeros_like(task.worth, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=options.lr)
    served = deque([logits.detach().clone()], maxlen=staleness + 1)
    generator = _generator(1000)
    for _ in range(options.updates):
        actions, scores = _sample(task, served[0], generator)
        advantages = _centred(scores) if options.baseline == "group" else scores
        loss = _loss(logits, served[0], actions, advantages, config)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        served.append(logits.detach().clone())
    return task.expected_worth(logits.detach())


def _sample(task: Task, logits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Replies [S, C, G, T] and their scores [S, C, G]."""
    gumbel = -torch.log(torch.empty(*logits.shape[:2], GROUP_SIZE, *logits.shape[2:]).exponential_(generator=generator))
    actions = (logits[:, :, None] + gumbel).argmax(-1)
    arms = task.worth[:, :, None].expand(gumbel.shape).gather(-1, actions[..., None]).squeeze(-1)
    noise = NOISE * torch.randn(actions.shape[:3], generator=generator)
    return actions, arms.mean(-1) - 1.0 + noise


def _centred(scores: Tensor) -> Tensor:
    """Each reply's score less the mean of its context's replies: [S, C, G] → [S, C, G]."""
    groups = torch.arange(scores[..., 0].numel()).repeat_interleave(scores.shape[-1])
    return torch.tensor(group_advantages(scores.flatten().tolist(), groups.tolist())).view_as(scores)


def _loss(logits: Tensor, behaviour: Tensor, actions: Tensor, advantages: Tensor, config: object) -> Tensor:
    num_seeds, num_contexts = actions.shape[:2]

    def logprobs(table: Tensor) -> Tensor:
        each = torch.log_softmax(table, -1)[:, :, None].expand(*actions.shape, NUM_ARMS)
        return each.gather(-1, actions[..., None]).flatten()

    now, then = logprobs(logits), logprobs(behaviour)
    loss, _ = policy_objective(
        now,
        then,
        now.detach(),
        advantages[..., None].expand(actions.shape).flatten(),
        mean=lambda x: x.sum() / (GROUP_SIZE * NUM_TOKENS),  # contexts and seeds are policies of their own
        config=config,  # type: ignore[arg-type]
        compute_full_kl=lambda: now,
        compute_entropy=lambda: now,
        proximal_logprobs=now.detach(),
        sequence_index=torch.arange(num_seeds * num_contexts * GROUP_SIZE).repeat_interleave(NUM_TOKENS),
    )
    return loss


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def compare(options: argparse.Namespace) -> dict[str, Tensor]:
    """The final worth of each seed, [S], by correction, and `fresh` for samples of the newest weights."""
    task = Task.make(options.seeds)
    fresh = train(task, "tis", options, staleness=0)
    return {"fresh": fresh} | {name: train(task, name, options, options.staleness) for name in CORRECTIONS}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--staleness", type=int, default=4)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--lr", type=float, default=8.0)
    parser.add_argument("--baseline", choices=("none", "group"), default="none")
    return parser.parse_args(argv)


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    found = compare(options)
    print(json.dumps({"settings": vars(options), **{name: _summary(w, found["fresh"]) for name, w in found.items()}}))


def _summary(worth: Tensor, fresh: Tensor) -> dict[str, float]:
    shares = worth / fresh
    error = float(shares.std() / len(shares) ** 0.5) if len(shares) > 1 else 0.0
    figures = {
        "worth": float(worth.mean()),
        "share_of_fresh": float(shares.mean()),
        "standard_error": error,
        "worst_seed": float(shares.min()),
    }
    return {name: round(value, 4) for name, value in figures.items()}


if __name__ == "__main__":
    main()
