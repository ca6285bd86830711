"""Hooks that see a whole batch right before it is trained: advantages of your own, and anything else on top of them.

    Batch ─▶ rollout_data: one entry a sample, one value a response token ─ hooks change it in place ─▶ Batch

    --custom-advantage-function-path      sets rollout_data["advantages"]
    --rollout-data-postprocess-path       may change advantages, rewards, loss masks

They run once for all ranks. The loss is given the `advantages` that they set; `--advantage-estimator` is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from slime.config import PluginConfig
from slime.errors import PluginError
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import ADVANTAGE, ROLLOUT_DATA, load_hook, style_of
from slime.plugins.loading import describe
from slime.plugins.running import run_with_deadline, user_code
from slime.types import Batch, Sample

_STREAMS = {"advantages": "advantages", "loss_masks": "loss_mask", "token_rewards": "rewards"}
"""What hooks may change → the stream it is; `rewards`, one number a sample, is changed as well."""


@dataclass(frozen=True)
class BatchHooks:
    """The hooks on a batch that were asked for."""

    advantage: NamedCall | None
    postprocess: NamedCall | None
    settings: Mapping[str, Any]
    timeout_s: float

    async def apply(self, batch: Batch, rollout_id: int) -> Batch:
        """The batch with what the hooks made of it.

        Raises:
            PluginError: a hook failed, took too long, or left lists of the wrong lengths.
        """
        if self.advantage is None and self.postprocess is None:
            return batch
        data = rollout_data(batch)
        offered = {
            "args": SimpleNamespace(**self.settings),
            "config": self.settings,
            "rollout_id": rollout_id,
            "rollout_data": data,
        }
        for call in (self.advantage, self.postprocess):
            if call is not None:
                await self._call(call, offered)
        if self.advantage is not None and data["advantages"] is None:
            raise PluginError(f'{describe(self.advantage.function)} did not set rollout_data["advantages"]')
        return _with(batch, data)

    async def _call(self, call: NamedCall, offered: Mapping[str, Any]) -> None:
        is_async = style_of(call.function) == "async"
        with user_code(describe(call.function), self.timeout_s):
            await run_with_deadline(lambda: call(offered), self.timeout_s, is_async=is_async)


def load_batch_hooks(plugin: PluginConfig, settings: Mapping[str, Any]) -> BatchHooks:
    """The hooks of `--custom-advantage-function-path` and `--rollout-data-postprocess-path`.

    Raises:
        PluginError: a path that leads nowhere, or a parameter that is not on offer.
    """
    advantage, postprocess = plugin.custom_advantage_function_path, plugin.rollout_data_postprocess_path
    return BatchHooks(
        load_hook(ADVANTAGE, advantage) if advantage else None,
        load_hook(ROLLOUT_DATA, postprocess) if postprocess else None,
        settings,
        plugin.hook_timeout_s,
    )


def rollout_data(batch: Batch) -> dict[str, Any]:
    """The batch as slime's training hooks see it: lists with one entry a sample.

    A response begins with the first token that trains and ends with the last. `log_probs` are those of sampling time.
    """
    spans = [_response(sample) for sample in batch.samples]

    def streams(name: str) -> list[Tensor]:
        return [
            torch.tensor([float(value) for value in sample.streams[name][span]] if name in sample.streams else [])
            for sample, span in zip(batch.samples, spans, strict=True)
        ]

    return {
        "tokens": [
            torch.tensor(sample.token_ids[: span.stop]) for sample, span in zip(batch.samples, spans, strict=True)
        ],
        "total_lengths": [span.stop for span in spans],
        "response_lengths": [span.stop - span.start for span in spans],
        "loss_masks": streams("loss_mask"),
        "rewards": [float(sample.values.get("reward", 0.0)) for sample in batch.samples],
        "token_rewards": streams("rewards"),
        "rollout_log_probs": streams("rollout_logprobs"),
        "log_probs": streams("rollout_logprobs"),
        "teacher_log_probs": streams("teacher_logprobs"),
        "group_ids": [group.group_id for group in batch.groups for _ in group.samples],
        "rollout_ids": [sample.trajectory_id or f"sample {i}" for i, sample in enumerate(batch.samples)],
        "source_names": [sample.source for sample in batch.samples],
        "advantages": None,
        "returns": None,
    }


def _with(batch: Batch, data: Mapping[str, Any]) -> Batch:
    spans = [_response(sample) for sample in batch.samples]
    changed: list[Sample] = []
    for index, (sample, span) in enumerate(zip(batch.samples, spans, strict=True)):
        streams = dict(sample.streams)
        for key, name in _STREAMS.items():
            if data[key] is not None and len(_entry(data, key, index, len(spans))):
                streams[name] = _put(streams.get(name), data, key, index, span, len(sample.token_ids))
        values = {**sample.values, "reward": float(_entry(data, "rewards", index, len(spans)))}
        changed.append(dataclasses.replace(sample, streams=streams, values=values))
    rest = iter(changed)
    return Batch(
        tuple(dataclasses.replace(group, samples=tuple(next(rest) for _ in group.samples)) for group in batch.groups)
    )


def _put(
    stream: Sequence[Any] | None, data: Mapping[str, Any], key: str, index: int, span: slice, length: int
) -> tuple[Any, ...]:
    values = torch.as_tensor(data[key][index], dtype=torch.float32).flatten().tolist()
    num_tokens = span.stop - span.start
    if len(values) != num_tokens:
        raise PluginError(
            f"rollout_data[{key!r}][{index}] has {len(values)} entries for a response of {num_tokens} tokens"
        )
    if key == "loss_masks":
        values = [int(value > 0) for value in values]
    whole: list[Any] = list(stream) if stream is not None else [0.0] * length
    whole[span] = values
    return tuple(whole)


def _entry(data: Mapping[str, Any], key: str, index: int, number: int) -> Any:
    if len(data[key]) != number:
        raise PluginError(f"rollout_data[{key!r}] has {len(data[key])} entries for {number} samples")
    return data[key][index]


def _response(sample: Sample) -> slice:
    trained = [position for position, flag in enumerate(sample.streams["loss_mask"]) if flag]
    return slice(trained[0], trained[-1] + 1) if trained else slice(len(sample.token_ids), len(sample.token_ids))
