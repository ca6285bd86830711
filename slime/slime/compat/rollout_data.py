"""Hooks that see a whole batch right before it is trained: advantages of your own, and anything else on top of them.

    Batch ─▶ rollout_data: one entry a sample, one value a response token ─ hooks change it in place ─▶ Batch

    --custom-advantage-function-path      sets rollout_data["advantages"]
    --rollout-data-postprocess-path       may change advantages, rewards, loss masks

They run once for all ranks. The loss is given the `advantages` that they set; `--advantage-estimator` is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from slime.config.sections import PluginConfig
from slime.errors import PluginError
from slime.plugins.hooks import ADVANTAGE, ROLLOUT_DATA, asked_for
from slime.types import Batch, Sample

_STREAMS = {"advantages": "advantages", "loss_masks": "loss_mask", "token_rewards": "rewards"}
"""What hooks may change → the stream it is; `rewards`, one number a sample, is changed as well."""


class BatchHooks:
    """The hooks of `--custom-advantage-function-path` and `--rollout-data-postprocess-path`; loading raises as
    `load_hook`."""

    def __init__(self, plugin: PluginConfig, settings: Mapping[str, Any]) -> None:
        self._advantage = asked_for(ADVANTAGE, plugin)
        self._postprocess = asked_for(ROLLOUT_DATA, plugin)
        self._settings = settings
        self._timeout_s = plugin.hook_timeout_s

    async def apply(self, batch: Batch, rollout_id: int) -> Batch:
        """The batch with what the hooks made of it.

        Raises:
            PluginError: a hook failed, took too long, or left lists of the wrong lengths.
        """
        if self._advantage is None and self._postprocess is None:
            return batch
        data, args = rollout_data(batch), SimpleNamespace(**self._settings)
        offered = {"args": args, "config": self._settings, "rollout_id": rollout_id, "rollout_data": data}
        for call in filter(None, (self._advantage, self._postprocess)):
            await call.in_time(offered, self._timeout_s)
        if self._advantage is not None and data["advantages"] is None:
            raise PluginError(f'{self._advantage.place} did not set rollout_data["advantages"]')
        return _with(batch, data)


def rollout_data(batch: Batch) -> dict[str, Any]:
    """The batch as slime's training hooks see it: lists with one entry a sample.

    A response begins with the first token that trains and ends with the last. `log_probs` are those of sampling time.
    """
    samples, spans = batch.samples, [_response(sample) for sample in batch.samples]

    def streams(name: str) -> list[Tensor]:
        return [
            torch.tensor([float(value) for value in sample.streams.get(name, ())[span]])
            for sample, span in zip(samples, spans, strict=True)
        ]

    return {
        "tokens": [torch.tensor(s.token_ids[: span.stop]) for s, span in zip(samples, spans, strict=True)],
        "total_lengths": [span.stop for span in spans],
        "response_lengths": [span.stop - span.start for span in spans],
        "loss_masks": streams("loss_mask"),
        "rewards": [float(sample.values.get("reward", 0.0)) for sample in samples],
        "token_rewards": streams("rewards"),
        "rollout_log_probs": streams("rollout_logprobs"),
        "log_probs": streams("rollout_logprobs"),
        "teacher_log_probs": streams("teacher_logprobs"),
        "group_ids": [group.group_id for group in batch.groups for _ in group.samples],
        "rollout_ids": [sample.trajectory_id or f"sample {i}" for i, sample in enumerate(samples)],
        "source_names": [sample.source for sample in samples],
        "advantages": None,
        "returns": None,
    }


def _with(batch: Batch, data: Mapping[str, Any]) -> Batch:
    for key in (*_STREAMS, "rewards"):
        if data[key] is not None and len(data[key]) != len(batch.samples):
            raise PluginError(f"rollout_data[{key!r}] has {len(data[key])} entries for {len(batch.samples)} samples")
    changed: list[Sample] = []
    for index, sample in enumerate(batch.samples):
        streams = dict(sample.streams)
        for key, name in _STREAMS.items():
            if data[key] is not None and len(data[key][index]):
                streams[name] = _put(sample, name, data[key][index], f"rollout_data[{key!r}][{index}]")
        values = {**sample.values, "reward": float(data["rewards"][index])}
        changed.append(dataclasses.replace(sample, streams=streams, values=values))
    return batch.with_samples(changed)


def _put(sample: Sample, name: str, given: Any, what: str) -> tuple[Any, ...]:
    """A stream of the sample with these values at its response."""
    span = _response(sample)
    values = torch.as_tensor(given, dtype=torch.float32).flatten().tolist()
    num_tokens = span.stop - span.start
    if len(values) != num_tokens:
        raise PluginError(f"{what} has {len(values)} entries for a response of {num_tokens} tokens")
    whole: list[Any] = list(sample.streams.get(name, [0.0] * len(sample.token_ids)))
    whole[span] = [int(value > 0) for value in values] if name == "loss_mask" else values
    return tuple(whole)


def _response(sample: Sample) -> slice:
    trained = [position for position, flag in enumerate(sample.streams["loss_mask"]) if flag]
    return slice(trained[0], trained[-1] + 1) if trained else slice(len(sample.token_ids), len(sample.token_ids))
