"""From the settings to a rollout: which loop it is, what it needs, and whether the settings fit it.

--rollout-function-path ─▶ plan_rollout: everything loaded and checked ─ engines are up ─▶ start ─▶ SampleGroups

it is                                          the loop
an async generator that asks for `prompts`     prompts
an async generator that does not               live
a plain or async function                      slime: called a batch at a time
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slime.chat import ChatFormat
from slime.compat.prompts.comparing import GroupComparer
from slime.compat.prompts.evaluation import Evaluation, PromptSets, load_eval_prompts
from slime.compat.prompts.groups import GroupMaker
from slime.compat.prompts.hooks import Loop, PromptHooks, check_hooks_are_called, load_data_source, load_prompt_hooks
from slime.compat.prompts.rollout import PromptRun
from slime.compat.prompts.source import DataSource
from slime.config import Config, PluginConfig
from slime.errors import ConfigError, PluginError
from slime.judging.llm.relative import MAX_REPLIES, RelativeJudge
from slime.judging.plugin import PluginJudge
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import ROLLOUT, load_rollout
from slime.plugins.rewards import RewardHook, load_reward
from slime.plugins.rollout_data import load_batch_hooks
from slime.plugins.settings import plugin_settings
from slime.plugins.slime_sample import Group
from slime.protocols import Engine

PROMPTS_PATH = "slime.rollout.prompts"
GIVES_GROUPS = "gives_groups"
"""Attribute by which a rollout of conversations says that a group of its holds several replies to one request."""


class NoPrompts:
    """The data source of a rollout function that was given none, and should not ask it."""

    def get_samples(self, num_samples: int) -> list[Group]:
        raise PluginError("the rollout asks its data source for prompts: give --prompt-data or --data-source-path")

    def add_samples(self, samples: list[Group]) -> None:
        raise PluginError("there is no data source to give samples back to: give --prompt-data or --data-source-path")

    def save(self, rollout_id: int) -> None:
        """There is nothing to keep."""

    def load(self, rollout_id: int) -> None:
        """Nothing was kept."""


@dataclass(frozen=True)
class RolloutPlan:
    """A rollout, loaded and checked.

    Attributes:
        call: the rollout function.
        reward: of `--custom-rm-path`.
        hooks, source, eval_sets: of loops over prompts.
    """

    loop: Loop
    call: NamedCall
    reward: RewardHook | None
    hooks: PromptHooks
    source: DataSource
    eval_sets: PromptSets

    @property
    def gives_groups(self) -> bool:
        """Whether the rollout function declares that its groups are replies to be compared: `gives_groups = True`."""
        return bool(getattr(self.call.function, GIVES_GROUPS, False))

    def start(
        self,
        config: Config,
        engines: Sequence[Engine],
        engine_urls: Sequence[str],
        *,
        policy_version: Callable[[], int],
        step: Callable[[], int],
        num_pending: Callable[[], int],
        relative: RelativeJudge | None = None,
    ) -> PromptRun | None:
        """What a loop over prompts works with; None for conversations.

        Args:
            policy_version, step, num_pending: see `PromptRun`.
            relative: ranks the replies to a prompt, with `--judge-siblings`.
        """
        if self.loop == "live":
            return None
        judge = None
        if self.reward is not None:
            judge = PluginJudge(
                self.reward, timeout_s=config.plugin.hook_timeout_s, reward_key=config.prompts.reward_key
            )
        comparer = None if relative is None else GroupComparer(relative, config.judge.num_judge_workers)
        chat = ChatFormat.load(config.model.model_path)
        maker = GroupMaker(config, self.hooks, judge, engines, chat, engine_urls, comparer)
        evaluation = Evaluation(config, self.eval_sets, self.source, maker)
        return PromptRun(
            config,
            self.source,
            maker,
            policy_version=policy_version,
            step=step,
            num_pending=num_pending,
            evaluation=evaluation,
        )


def plan_rollout(config: Config) -> RolloutPlan:
    """The rollout that the settings ask for.

    Raises:
        ConfigError: a path, a file or a signature is wrong, or two settings do not fit each other.
    """
    plugin, prompts = config.plugin, config.prompts
    has_source = bool(prompts.prompt_data or plugin.data_source_path)
    path = plugin.rollout_function_path
    if has_source and path == PluginConfig.rollout_function_path:
        path = PROMPTS_PATH
    call, is_stream = load_rollout(path)
    loop: Loop = "slime" if not is_stream else "prompts" if "prompts" in call.asks_for else "live"
    check_hooks_are_called(plugin, loop)
    _check_settings(config, loop, path, has_source=has_source)
    if config.judge.judge_siblings:
        _check_comparing(config, loop)
    load_batch_hooks(plugin, plugin_settings(config))  # the learner loads them again
    reward = None
    if plugin.custom_rm_path:
        takes_groups = prompts.group_rm and loop != "live"
        reward = load_reward(plugin.custom_rm_path, plugin_settings(config), takes_groups=takes_groups)
    return RolloutPlan(
        loop=loop,
        call=call,
        reward=reward,
        hooks=load_prompt_hooks(plugin),
        source=load_data_source(config) if has_source else NoPrompts(),
        eval_sets=load_eval_prompts(config),
    )


def _check_comparing(config: Config, loop: Loop) -> None:
    """Whether there is somebody who ranks replies, and nothing is asked that a ranking does not say."""
    if config.plugin.custom_rm_path:
        raise ConfigError("--judge-siblings: --custom-rm-path gives the rewards; leave one of them out")
    if config.judge.judge != "llm":
        raise ConfigError("--judge-siblings: only a language model compares replies; add --judge llm, or leave it out")
    if loop == "live":
        return
    number = config.rollout.num_rollouts_per_prompt
    if not 2 <= number <= MAX_REPLIES:
        raise ConfigError(
            f"--judge-siblings compares 2 to {MAX_REPLIES} replies to a prompt; --num-rollouts-per-prompt is {number}"
        )
    if config.prompts.eval_prompt_data:
        raise ConfigError(
            "--judge-siblings says which of several replies is better, not how good a model is: "
            "--eval-prompt-data needs --custom-rm-path"
        )


def _check_settings(config: Config, loop: Loop, path: str, *, has_source: bool) -> None:
    prompts, plugin = config.prompts, config.plugin
    if loop == "live":
        if has_source:
            raise ConfigError(f"--prompt-data: {ROLLOUT.flag} {path} asks for no `prompts`; leave one of them out")
        for name in ("group_rm", "reward_key", "eval_prompt_data", "eval_interval", "over_sampling_batch_size"):
            if getattr(prompts, name):
                raise ConfigError(f"--{name.replace('_', '-')} is for prompts: it needs --prompt-data")
        return
    if loop == "prompts" and not has_source:
        raise ConfigError(f"{ROLLOUT.flag} {path} needs prompts: give --prompt-data or --data-source-path")
    has_reward = plugin.custom_rm_path or plugin.custom_generate_function_path or config.judge.judge_siblings
    if loop == "prompts" and not has_reward:
        raise ConfigError(
            "replies to prompts need a reward: give --custom-rm-path, or have a model compare them with "
            "--judge llm --judge-siblings"
        )
    if loop == "prompts" and config.loss.compares_groups and config.rollout.num_rollouts_per_prompt == 1:
        raise ConfigError(
            "the advantage compares replies to one prompt, and --num-rollouts-per-prompt is 1: nothing would be learned"
        )
    if prompts.group_rm and not plugin.custom_rm_path:
        raise ConfigError("--group-rm says what --custom-rm-path takes; give it, or leave this out")
    wants_eval = bool(prompts.eval_prompt_data or plugin.eval_function_path)
    if wants_eval != bool(prompts.eval_interval):
        raise ConfigError("--eval-interval goes with --eval-prompt-data or --eval-function-path: give both, or neither")
    if prompts.eval_prompt_data and plugin.eval_function_path:
        raise ConfigError("--eval-function-path has prompts of its own; leave --eval-prompt-data out")
