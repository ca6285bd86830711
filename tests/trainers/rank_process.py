"""One rank of a trainer, a process of its own: `python rank_process.py RANK WORLD_SIZE ADDRESS MODEL_DIR OUT_DIR LOSS`.

Trains two updates on the samples that its test makes too, with a checkpoint in between. LOSS is the loss's settings as
JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from learners import batch_of, random_samples, trainer_of
from slime.trainers.ranks import join_ranks


def run(rank: int, world_size: int, address: str, model_dir: Path, out_dir: Path, loss: dict[str, Any]) -> None:
    if world_size > 1:
        join_ranks(rank, world_size, address, timeout_s=60.0)
    trainer = trainer_of(
        model_dir,
        rank=rank,
        world_size=world_size,
        max_tokens_per_gpu=64,
        num_steps_per_rollout=2 if loss else 1,
        loss={"entropy_coef": 0.01, **loss},
    )
    reports = [trainer.train(batch_of(random_samples(9, seed=1)))]
    checkpoint = trainer.save(out_dir)
    reports += [trainer.train(batch_of(random_samples(1, seed=2)))]  # one sample: all ranks but one have nothing to do
    state = {name: p.detach().clone() for name, p in trainer._policy.model.named_parameters()}
    torch.save(state, out_dir / f"rank-{rank}.pt")
    outcome = {"metrics": [dict(r.metrics) for r in reports], "step": trainer.step, "checkpoint": str(checkpoint)}
    (out_dir / f"rank-{rank}.json").write_text(json.dumps(outcome))
    if world_size > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]), Path(sys.argv[5]), json.loads(sys.argv[6]))
