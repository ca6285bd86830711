"""Data parallelism: every rank holds the model, computes its share of a step, and all-reduces the gradients.

Every rank gets the whole batch and makes the same plan from it, so nothing is handed out; what crosses
between ranks is sums: of gradients, and of metrics.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from slime.errors import TrainerError

_BUCKET_ELEMENTS = 1 << 24


def join_ranks(rank: int, world_size: int, address: str, timeout_s: float = 600.0) -> None:
    """Meet the other ranks; a collective that one of them does not join fails after `timeout_s`.

    Args:
        address: the same for all, e.g. `tcp://127.0.0.1:29500` or `file:///tmp/run/ranks`.
    """
    timeout = datetime.timedelta(seconds=timeout_s)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, init_method=address, rank=rank, world_size=world_size, timeout=timeout)


class Ranks:
    """This rank among the others; alone, every sum is the number itself."""

    def __init__(self, rank: int, world_size: int) -> None:
        if world_size > 1 and not dist.is_initialized():
            raise TrainerError(f"rank {rank} of {world_size} has not met the others: call join_ranks first")
        if world_size > 1 and (dist.get_rank(), dist.get_world_size()) != (rank, world_size):
            raise TrainerError(
                f"joined as rank {dist.get_rank()} of {dist.get_world_size()}, not {rank} of {world_size}"
            )
        self.rank = rank
        self.world_size = world_size

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Add up `.grad` over the ranks, in place; the result is bit for bit the same on all of them.

        A parameter that no rank's share touched stays without a gradient, as it would on one rank: the optimizer then
        neither moves nor decays it.
        """
        if self.world_size == 1:
            return
        parameters = list(parameters)
        touched = self.sum_tensor(torch.tensor([float(parameter.grad is not None) for parameter in parameters]))
        bucket: list[Tensor] = []
        for parameter, is_touched in zip(parameters, touched.tolist(), strict=True):
            if not is_touched:
                continue
            if parameter.grad is None:  # another rank's share touched it
                parameter.grad = torch.zeros_like(parameter)
            bucket.append(parameter.grad)
            if sum(grad.numel() for grad in bucket) >= _BUCKET_ELEMENTS:
                self._sum_bucket(bucket)
                bucket = []
        if bucket:
            self._sum_bucket(bucket)

    def sum_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Add up metrics over the ranks. Rank 0, which never has nothing to do, says which there are."""
        if self.world_size == 1:
            return dict(metrics)
        said = [sorted(metrics)]
        dist.broadcast_object_list(said, src=0, device=torch.device(self._device()))
        (names,) = said
        values = self.sum_tensor(torch.tensor([metrics.get(name, 0.0) for name in names], dtype=torch.float64))
        return dict(zip(names, values.tolist(), strict=True))

    def sum_tensor(self, values: Tensor) -> Tensor:
        """The sum over the ranks of a CPU tensor of one shape on all of them."""
        if self.world_size == 1:
            return values
        summed = values.to(self._device())
        dist.all_reduce(summed)
        return summed.cpu()

    def _sum_bucket(self, gradients: list[Tensor]) -> None:
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def _device(self) -> str:
        return "cuda" if dist.get_backend() == "nccl" else "cpu"
