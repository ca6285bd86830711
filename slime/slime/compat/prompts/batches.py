"""A batch of finished groups on its way to the trainer: the hooks that see a batch as a whole, then our samples.

groups ─▶ sample filter ─▶ all-samples hook ─▶ log ─▶ reward post-process or converter ─▶ SampleGroup, …
"""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slime.compat.conversion import to_group, why_not_trained
from slime.compat.prompts.hooks import PromptHooks
from slime.compat.prompts.source import DataSource, tell
from slime.compat.sample import Group, Sample, flatten
from slime.errors import PluginError
from slime.fields import fields
from slime.types import SampleGroup

log = logging.getLogger(__name__)

_CONVERTED = {
    "tokens": "tokens",
    "response_lengths": "response_length",
    "loss_masks": "loss_mask",
    "rollout_log_probs": "rollout_log_probs",
    "teacher_log_probs": "teacher_log_probs",
    "rollout_ids": "rollout_id",
}
"""Keys of slime's train data → attributes of a sample."""
_DERIVED = {
    "truncated",
    "sample_indices",
    "rollout_mask_sums",
    "total_lengths",
    "metadata",
    "source_names",
    "round_number",
}
"""Its other keys: counted here anew, or of no use to the trainer."""


class BatchMaker:
    """Finishes batches.

    Attributes:
        rollout_id: the number of the next one.
        left_out: samples that were made and will never be trained, by reason.
    """

    def __init__(self, hooks: PromptHooks, source: DataSource) -> None:
        self.rollout_id = 0
        self.left_out: Counter[str] = Counter()
        self._source = source
        self._hooks = hooks
        self._figures: list[dict[str, float]] = []
        self._dropped: Counter[str] = Counter()
        self._indices: dict[str, set[int]] = {}

    async def finish(
        self, batch: Sequence[tuple[Group, int]], seconds: float, metrics: Mapping[str, Any] | None = None
    ) -> list[SampleGroup]:
        """The batch as the trainer takes it; what cannot be trained is left out, and counted.

        Args:
            batch: groups, each with the policy version it was begun under.
            seconds: how long it took.
            metrics: figures that a rollout function gave.
        """
        ordered = sorted(batch, key=lambda pair: _order(pair[0]))
        groups = [group for group, _ in ordered]
        await self._hooks.call("rollout_sample_filter_path", samples=groups)
        await self._hooks.call("rollout_all_samples_process_path", samples=groups, data_source=self._source)
        for sample in flatten(groups):
            sample.reward = sample.get_reward_value(self._hooks.args)
        await self._log(groups, seconds, metrics or {})
        await self._convert(flatten(groups))
        finished: list[SampleGroup] = []
        temperature = self._hooks.config.prompts.rollout_temperature
        for number, (group, version) in enumerate(ordered):
            group_id = f"rollout{self.rollout_id}-{number}"
            if made := to_group(group, group_id=group_id, temperature=temperature, version=version):
                finished.append(made)
                self._indices[group_id] = _indices(group)
            else:
                tell(self._source, "settle", _indices(group))
        reasons = _left_out(groups)
        self.left_out.update(reasons)
        if not finished and reasons["no log-probs"]:
            raise PluginError(
                "replies come without log-probs and none can be trained: set sample.rollout_log_probs from the answer "
                "of the engine, or use sample.append_response_tokens"
            )
        self.rollout_id += 1
        return finished

    def drop(self, group: Group, reason: str) -> None:
        """Leave a group out of every batch."""
        self._dropped[f"rollout/dynamic_filter/drop_{reason}"] += 1
        self.left_out[reason] += len(flatten(group))
        tell(self._source, "settle", _indices(group))

    def metrics(self) -> dict[str, float]:
        """Since the last call: means over the batches that were finished, and groups that were dropped."""
        figures, dropped = self._figures, self._dropped
        self._figures, self._dropped = [], Counter()
        names = sorted({name for figure in figures for name in figure})
        return {name: statistics.fmean(f[name] for f in figures if name in f) for name in names} | dropped

    def settle(self, group_ids: Iterable[str]) -> None:
        """Tell the data source that these groups are done with."""
        tell(self._source, "settle", {index for name in group_ids for index in self._indices.pop(name, ())})

    async def _log(self, groups: list[Group], seconds: float, extra: Mapping[str, Any]) -> None:
        is_logged = await self._hooks.call(
            "custom_rollout_log_function_path",
            samples=flatten(groups),
            rollout_id=self.rollout_id,
            extra_metrics=dict(extra),
            rollout_time=seconds,
        )
        if not is_logged:
            self._figures.append(_figures(groups) | {"rollout/seconds": seconds} | _numbers(extra))

    async def _convert(self, samples: list[Sample]) -> None:
        """Have a hook make the advantages of the samples, or what they train altogether."""
        if convert := self._hooks.get(name := "custom_convert_samples_to_train_data_path"):
            _put_back(convert.place, await self._hooks.call(name, samples=samples), samples)
        elif post_process := self._hooks.get(name := "custom_reward_post_process_path"):
            result, place = await self._hooks.call(name, samples=samples), post_process.place
            if not isinstance(result, tuple | list) or len(result) != 2:
                raise PluginError(f"{place} gave {type(result).__name__}; it gives (raw rewards, rewards)")
            raw, processed = (_list(place, values, len(samples)) for values in result)
            for sample, reward in zip(samples, raw, strict=True):
                sample.reward = None if sample.reward is None else reward
            _set_advantages(samples, processed)


def _put_back(place: str, data: Any, samples: list[Sample]) -> None:
    """Put slime's train data back onto the samples."""
    if not isinstance(data, Mapping):
        raise PluginError(f"{place} gave {type(data).__name__}; it gives a mapping of lists")
    declared = {field.name for field in fields()}
    for key, values in data.items():
        if key in _DERIVED or key in ("rewards", "raw_reward"):
            continue
        if key not in _CONVERTED and key not in declared:
            raise PluginError(f"{place} gave {key!r}, which is no field: declare it with register_field")
        for sample, value in zip(samples, _list(place, values, len(samples)), strict=True):
            if key in _CONVERTED:
                setattr(sample, _CONVERTED[key], value)
            else:
                sample.train_metadata = {**(sample.train_metadata or {}), key: value}
            if key in ("tokens", "response_lengths"):
                sample.policy_versions = None
    rewards = _list(place, data.get("rewards", [sample.reward for sample in samples]), len(samples))
    raw = _list(place, data.get("raw_reward", rewards), len(samples))
    for sample, reward in zip(samples, raw, strict=True):
        sample.reward = reward
    if "raw_reward" in data:
        _set_advantages(samples, rewards)


def _set_advantages(samples: Sequence[Sample], values: Sequence[Any]) -> None:
    for sample, value in zip(samples, values, strict=True):
        advantages = [float(value)] * sample.response_length
        sample.train_metadata = {"advantages": advantages, **(sample.train_metadata or {})}


def _list(place: str, values: Any, number: int) -> list[Any]:
    listed: list[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
    if len(listed) != number:
        raise PluginError(f"{place} gave {len(listed)} entries for {number} samples")
    return listed


def _indices(group: Group) -> set[int]:
    """The data source's number of a group; none where it does not number them."""
    return {sample.group_index for sample in flatten(group) if sample.group_index is not None}


def _order(group: Group) -> int:
    index = flatten(group)[0].index
    return -1 if index is None else index


def _figures(groups: Sequence[Group]) -> dict[str, float]:
    samples = flatten(groups)
    rewards = [float(sample.reward) for sample in samples if isinstance(sample.reward, int | float)]
    lengths = [sample.effective_response_length for sample in samples]
    truncated = sum(sample.status is Sample.Status.TRUNCATED for sample in samples)
    one_reward = [len({sample.reward for sample in flatten(group)}) == 1 for group in groups]
    figures = {
        "rollout/response_len/mean": statistics.fmean(lengths),
        "rollout/truncated_ratio": truncated / len(samples),
        "rollout/zero_std_ratio": sum(one_reward) / len(groups),
    }
    if rewards:
        figures["rollout/raw_reward"] = statistics.fmean(rewards)
    return figures | {f"rollout/left_out/{reason}": float(count) for reason, count in _left_out(groups).items()}


def _left_out(groups: Sequence[Group]) -> Counter[str]:
    return Counter(reason for sample in flatten(groups) if (reason := why_not_trained(sample)))


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in metrics.items() if isinstance(value, int | float)}
