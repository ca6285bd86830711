"""From the settings to a rollout: the function is loaded, its kind is known, and the settings are checked against it.

--rollout-function-path ─▶ plan_rollout: loaded and checked ─ engines are up ─▶ plan.open(ctx, config) ─▶ Rollout

it is                                                                          the rollout's kind
an async generator that asks for `prompts`                                     PROMPTS
another async generator, or a function of `ctx` that returns one               CONVERSATIONS
a plain or async function                                                      BATCHES: called a batch at a time
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from slime.chat import ChatFormat
from slime.compat.prompts.evaluation import PromptSets, load_eval_prompts
from slime.compat.prompts.groups import GroupMaker
from slime.compat.prompts.hooks import LoadedHooks, PromptHooks, load_prompt_hooks
from slime.compat.prompts.rewards import GroupComparer, SampleJudge
from slime.compat.prompts.rollout import PromptRun
from slime.compat.prompts.source import DataSource, NoPrompts, load_data_source
from slime.compat.rollout_data import BatchHooks
from slime.config.checks.conditions import PROMPTS
from slime.config.checks.contradictions import RolloutFacts, RolloutKind, check_rollout
from slime.config.sections import Config, PluginConfig
from slime.judging.llm.relative import MAX_REPLIES, RelativeJudge
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import PROMPT_HOOKS, SAMPLING_HOOKS, load_rollout
from slime.plugins.rewards import RewardHook, load_reward
from slime.plugins.settings import plugin_settings
from slime.protocols import Rollout
from slime.rollout.context import RolloutContext, StreamRollout, offered

PROMPTS_PATH = "slime.rollout.prompts"
GIVES_GROUPS = "gives_groups"
"""Attribute by which a rollout of conversations declares that its groups hold several replies to one request."""
_UNCALLED: Mapping[RolloutKind, Collection[str]] = {
    RolloutKind.CONVERSATIONS: PROMPT_HOOKS,
    RolloutKind.PROMPTS: (),
    RolloutKind.BATCHES: SAMPLING_HOOKS,
}
"""The hooks that a kind of rollout does not call."""


@dataclass(frozen=True)
class RolloutPlan:
    """A rollout, loaded and checked.

    Attributes:
        call: the rollout function.
        reward: of `--custom-rm-path`.
        hooks, source, eval_sets: of a rollout over prompts.
    """

    call: NamedCall
    kind: RolloutKind
    reward: RewardHook | None = None
    hooks: LoadedHooks = field(default_factory=dict)
    source: DataSource = NoPrompts()
    eval_sets: PromptSets = field(default_factory=dict)

    @property
    def is_endless(self) -> bool:
        """Whether samples come as people talk, so that a run which trains nothing for a while goes on."""
        return self.kind is RolloutKind.CONVERSATIONS

    def open(self, ctx: RolloutContext, config: Config, named: Mapping[str, Any]) -> Rollout:
        """The rollout, on engines that are up.

        Args:
            named: what it may ask for beside the context: `teacher`, `hint_source`.
        """
        if self.kind is RolloutKind.CONVERSATIONS:
            return StreamRollout(lambda: self.call(offered(ctx, config, **named)))
        prompts = self.prompts(ctx, config)
        if self.kind is RolloutKind.BATCHES:
            return _Prompted(lambda: prompts.batches_of(self.call), prompts)
        return _Prompted(lambda: self.call(offered(ctx, config, prompts=prompts, **named)), prompts)

    def prompts(self, ctx: RolloutContext, config: Config) -> PromptRun:
        """What a loop over prompts works with."""
        chat = ChatFormat.load(config.model.model_path)
        hooks = PromptHooks(config, self.hooks, ctx.engine_urls, chat.stop_token_ids)
        judge: SampleJudge | GroupComparer | None = None
        if self.reward is not None:
            timeout_s, key = config.plugin.hook_timeout_s, config.prompts.reward_key
            judge = SampleJudge(self.reward, hooks, timeout_s=timeout_s, reward_key=key)
        elif ctx.model is not None and config.judge.judge_siblings:
            judge = GroupComparer(RelativeJudge(ctx.model, config.judge), config.judge.num_judge_workers)
        return PromptRun(self.source, GroupMaker(hooks, judge, ctx.engines, chat), ctx.progress, self.eval_sets)


@dataclass(frozen=True)
class _Prompted(StreamRollout):
    """A stream over what a `PromptRun` has; the run is told what became of its samples."""

    prompts: PromptRun

    def left_out(self) -> Mapping[str, int]:
        return self.prompts.batches.left_out

    async def updated(self, step: int) -> Mapping[str, float]:
        return await self.prompts.updated(step)

    async def saved(self, step: int, group_ids: tuple[str, ...]) -> None:
        await self.prompts.saved(step, group_ids)


def plan_rollout(config: Config) -> RolloutPlan:
    """The rollout that the settings ask for.

    Raises:
        ConfigError: a path, a file or a signature is wrong, or settings do not fit it.
    """
    plugin, prompts = config.plugin, config.prompts
    has_source = PROMPTS.holds(config)
    path = plugin.rollout_function_path
    if has_source and path == PluginConfig.rollout_function_path:
        path = PROMPTS_PATH
    call, is_stream = load_rollout(path)
    kind = RolloutKind.BATCHES
    if is_stream:
        kind = RolloutKind.PROMPTS if "prompts" in call.asks_for else RolloutKind.CONVERSATIONS
    gives_groups = bool(getattr(call.function, GIVES_GROUPS, False))
    check_rollout(config, RolloutFacts(kind, path, gives_groups, MAX_REPLIES, _UNCALLED[kind]))
    BatchHooks(plugin, plugin_settings(config))  # the learner loads them again
    is_live = kind is RolloutKind.CONVERSATIONS
    reward = None
    if plugin.custom_rm_path:
        takes_groups = prompts.group_rm and not is_live
        reward = load_reward(plugin.custom_rm_path, plugin_settings(config), takes_groups=takes_groups)
    if is_live:
        return RolloutPlan(call, kind, reward)
    hooks = load_prompt_hooks(plugin)
    source = load_data_source(config, hooks) if has_source else NoPrompts()
    return RolloutPlan(call, kind, reward, hooks, source, load_eval_prompts(config))
