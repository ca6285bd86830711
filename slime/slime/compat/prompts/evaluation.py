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
from slime.compat.hook_engines import arguments_now
from slime.compat.prompts.groups import GroupMaker
from slime.compat.prompts.source import DataSource, read_prompts
from slime.compat.sample import Group, RolloutFnEvalOutput, Sample, flatten
from slime.config import Config
from slime.errors import ConfigError, PluginError
from slime.plugins.loading import describe

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


class Evaluation:
    """Evaluates every so many updates.

    Args:
        sets: prompts by name; ignored by `--eval-function-path`, which has its own.
    """

    def __init__(self, config: Config, sets: PromptSets, source: DataSource, maker: GroupMaker) -> None:
        self._interval = config.prompts.eval_interval
        self._num_per_prompt = config.prompts.n_samples_per_eval_prompt
        self._sets = sets
        self._source = source
        self._maker = maker

    async def run(self, step: int) -> dict[str, float]:
        """`eval/…` figures if an evaluation is due after update `step`.

        Raises:
            PluginError: a hook failed.
        """
        if not self._interval or step % self._interval:
            return {}
        hooks = self._maker.hooks
        offered = {"args": await arguments_now(self._maker.args), "config": self._maker.settings, "rollout_id": step}
        extra: Mapping[str, Any] = {}
        if hooks.evaluate is None:
            data = {name: await self._replies(prompts, step) for name, prompts in self._sets.items()}
        else:
            place = describe(hooks.evaluate.function)
            result: Any = await hooks.call(hooks.evaluate, offered | {"data_source": self._source, "evaluation": True})
            if isinstance(result, RolloutFnEvalOutput):
                extra, result = result.metrics or {}, result.data
            if not isinstance(result, Mapping) or not all(isinstance(v, Mapping) for v in result.values()):
                raise PluginError(f"{place} gave {type(result).__name__}; an evaluation is a mapping of sets")
            data = dict(result)
        if hooks.eval_log is not None and await hooks.call(
            hooks.eval_log, offered | {"data": data, "extra_metrics": dict(extra)}
        ):
            return {}
        return _figures(data) | {str(name): float(value) for name, value in extra.items()}

    async def _replies(self, prompts: Sequence[Sample], step: int) -> dict[str, Any]:
        groups: list[Group] = [[copy.deepcopy(prompt) for _ in range(self._num_per_prompt)] for prompt in prompts]
        made = await asyncio.gather(*(self._maker.make(group, step, evaluation=True) for group in groups))
        samples = flatten(made)
        return {
            "rewards": [sample.get_reward_value(self._maker.args) for sample in samples],
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
