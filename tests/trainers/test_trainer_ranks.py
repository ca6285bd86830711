"""Data parallelism with real gloo processes: the same numbers as one rank, the same weights on all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from learners import relative_difference

PROGRAM = Path(__file__).with_name("rank_process.py")


def run_ranks(world_size: int, model_dir: Path, out_dir: Path, loss: dict | None = None) -> list[dict]:
    """Each rank's report, with its parameters as `parameters`."""
    out_dir.mkdir()
    address = f"file://{out_dir}/meeting"
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, str(rank), str(world_size), address, model_dir, out_dir, json.dumps(loss or {})]
        )
        for rank in range(world_size)
    ]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0] * world_size
    finally:
        for process in processes:
            process.kill()
    outcomes = [json.loads((out_dir / f"rank-{rank}.json").read_text()) for rank in range(world_size)]
    for rank, outcome in enumerate(outcomes):
        outcome["parameters"] = torch.load(out_dir / f"rank-{rank}.pt", weights_only=True)
    return outcomes


CRITIC_AND_WHITENING = {
    "advantage_estimator": "ppo",
    "normalize_advantages": True,
    "behaviour_correction": "mis",
    "mis_level": "geometric",
    "kl_coef": 0.1,
    "kl_loss_coef": 0.0,
}
"""What is computed of a whole batch before its first step, each rank a share."""


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "loss"), [(3, {}), (2, CRITIC_AND_WHITENING)])
def test_any_number_of_ranks_gives_the_numbers_of_one(
    world_size: int, loss: dict, policy_dir: Path, tmp_path: Path
) -> None:
    (alone,) = run_ranks(1, policy_dir, tmp_path / "alone", loss)
    ranks = run_ranks(world_size, policy_dir, tmp_path / "ranks", loss)
    for rank in ranks:
        assert rank["step"] == 2
        assert all(torch.equal(value, ranks[0]["parameters"][name]) for name, value in rank["parameters"].items())
        assert rank["checkpoint"] == str(tmp_path / "ranks" / "checkpoint-1")
        assert rank["metrics"] == ranks[0]["metrics"]
        for own, expected in zip(rank["metrics"], alone["metrics"], strict=True):
            assert own == {name: pytest.approx(value, rel=1e-4, abs=1e-6) for name, value in expected.items()}
    assert relative_difference(ranks[0]["parameters"], alone["parameters"]) < 1e-4
    assert (tmp_path / "ranks" / "checkpoint-1" / "manifest.json").exists()


UNTOUCHED = """
import sys, torch
from slime.trainers.ranks import Ranks, join_ranks
rank = int(sys.argv[1])
join_ranks(rank, 2, sys.argv[2], timeout_s=60.0)
both, one, none = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
both.grad = torch.tensor([1.0, 2.0])
if rank == 0:
    one.grad = torch.tensor([3.0, 4.0])
Ranks(rank, 2).sum_gradients([both, none, one])
assert both.grad.tolist() == [2.0, 4.0], both.grad
assert one.grad.tolist() == [3.0, 4.0], one.grad
assert none.grad is None, none.grad
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_a_parameter_that_no_rank_touched_gets_no_gradient(tmp_path: Path) -> None:
    """It would decay on several ranks and not on one."""
    command = [sys.executable, "-c", UNTOUCHED]
    processes = [subprocess.Popen([*command, str(rank), f"file://{tmp_path}/meeting"]) for rank in range(2)]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.slow
def test_a_rank_whose_fellow_never_comes_gives_up(policy_dir: Path, tmp_path: Path) -> None:
    program = "import sys; from slime.trainers.ranks import join_ranks; join_ranks(0, 2, sys.argv[1], timeout_s=2.0)"
    waited = subprocess.run(
        [sys.executable, "-c", program, f"file://{tmp_path}/meeting"], timeout=60, capture_output=True, text=True
    )
    assert waited.returncode != 0
    assert "timed out" in waited.stderr.lower() or "timeout" in waited.stderr.lower()
