"""Evaluation during a run: replies to held-out prompts by what engines serve, rewarded as in training, never trained.

every --eval-interval updates:  prompts ─▶ GroupMaker ─▶ {set: rewards, truncated, samples} ─▶ eval/<set>
"""

from __future__ import annotations

import asyncio
import copy
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from slime.chat import ChatFormat
from slime.compat.prompts.groups import GroupMaker
from slime.compat.prompts.source import DataSource, read_prompts
from slime.compat.sample import Group, RolloutFnEvalOutput, Sample, flatten
from slime.config.sections import Config
from slime.errors import ConfigError, PluginError

PromptSets = Mapping[str, Sequence[Sample]]


def load_eval_prompts(config: Config) -> PromptSets:
    """The sets of `--eval-prompt-data math=a.jsonl,code=b.jsonl`.

    Raises:
        ConfigError: an entry without a name, or a file that holds no prompts.
    """
    sets: dict[str, Sequence[Sample]] = {}
    for entry in filter(None, config.prompts.eval_prompt_data.split(",")):
        name, equals, path = entry.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--eval-prompt-data {entry}: write NAME=tasks.jsonl")
        sets[name.strip()] = read_prompts(path.strip(), config.prompts, ChatFormat.load(config.model.model_path))
    return sets


async def evaluate(maker: GroupMaker, source: DataSource, sets: PromptSets, step: int) -> dict[str, float]:
    """`eval/…` figures if an evaluation is due after update `step`.

    Args:
        sets: prompts by name; ignored by `--eval-function-path`, which has its own.
    """
    hooks, interval = maker.hooks, maker.config.prompts.eval_interval
    if not interval or step % interval:
        return {}
    extra: Mapping[str, Any] = {}
    if own := hooks.get("eval_function_path"):
        data = await hooks.sample(own, rollout_id=step, data_source=source, evaluation=True)
        if isinstance(data, RolloutFnEvalOutput):
            extra, data = data.metrics or {}, data.data
        if not isinstance(data, Mapping) or not all(isinstance(v, Mapping) for v in data.values()):
            raise PluginError(f"{own.place} gave {type(data).__name__}; an evaluation is a mapping of sets")
    else:
        data = {name: await _replies(maker, prompts, step) for name, prompts in sets.items()}
    is_logged = await hooks.call(
        "custom_eval_rollout_log_function_path", rollout_id=step, data=dict(data), extra_metrics=dict(extra)
    )
    return {} if is_logged else _figures(data) | {str(name): float(value) for name, value in extra.items()}


async def _replies(maker: GroupMaker, prompts: Sequence[Sample], step: int) -> dict[str, Any]:
    number = maker.config.prompts.n_samples_per_eval_prompt
    groups: list[Group] = [[copy.deepcopy(prompt) for _ in range(number)] for prompt in prompts]
    samples = flatten(await asyncio.gather(*(maker.make(group, step, evaluation=True) for group in groups)))
    return {
        "rewards": [sample.get_reward_value(maker.hooks.args) for sample in samples],
        "truncated": [sample.status is Sample.Status.TRUNCATED for sample in samples],
        "samples": samples,
    }


def _figures(data: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Means by set; replies without a reward are counted apart, not as zeros."""
    figures: dict[str, float] = {}
    for name, entry in data.items():
        rewards = [float(reward) for reward in entry.get("rewards", ()) if reward is not None]
        truncated = [bool(flag) for flag in entry.get("truncated", ())]
        if rewards:
            figures[f"eval/{name}"] = statistics.fmean(rewards)
        if truncated:
            figures[f"eval/{name}-truncated_ratio"] = statistics.fmean(truncated)
        figures[f"eval/{name}-unjudged"] = float(len(entry.get("rewards", ())) - len(rewards))
    return figures
