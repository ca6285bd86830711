"""The hooks of a rollout over prompts: loaded, matched with their signatures, called with a deadline.

PluginConfig ─ load_prompt_hooks ─▶ PromptHooks ─ call(hook, values) ─▶ a result in time, or PluginError
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slime.chat import ChatFormat
from slime.compat.arguments import slime_arguments
from slime.compat.prompts.source import BufferFilter, DataSource, PromptSource, read_prompts
from slime.compat.sample import Group
from slime.config import Config, PluginConfig
from slime.errors import PluginError
from slime.plugins import hooks
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import Hook, load_hook, style_of
from slime.plugins.loading import describe
from slime.plugins.running import run_with_deadline, user_code
from slime.plugins.settings import plugin_settings

PROMPT_HOOKS: Mapping[str, Hook] = {
    "custom_generate_function_path": hooks.GENERATE,
    "rollout_sample_hook_path": hooks.SAMPLE_HOOK,
    "dynamic_sampling_filter_path": hooks.DYNAMIC_FILTER,
    "rollout_sample_filter_path": hooks.SAMPLE_FILTER,
    "rollout_all_samples_process_path": hooks.ALL_SAMPLES,
    "buffer_filter_path": hooks.BUFFER_FILTER,
    "data_source_path": hooks.DATA_SOURCE,
    "custom_reward_post_process_path": hooks.REWARD_POST,
    "custom_convert_samples_to_train_data_path": hooks.CONVERT,
    "custom_rollout_log_function_path": hooks.ROLLOUT_LOG,
    "eval_function_path": hooks.EVAL,
    "custom_eval_rollout_log_function_path": hooks.EVAL_LOG,
}
"""Setting → its hook; which rollouts call it, `config.contradictions.CALLED_BY` says."""


@dataclass(frozen=True)
class PromptHooks:
    """The hooks that were given; None, or empty, where ours does it.

    Attributes:
        timeout_s: how long one call may take.
    """

    timeout_s: float
    generate: NamedCall | None = None
    sample_hooks: tuple[NamedCall, ...] = ()
    dynamic_filter: NamedCall | None = None
    sample_filter: NamedCall | None = None
    all_samples: NamedCall | None = None
    reward_post: NamedCall | None = None
    convert: NamedCall | None = None
    rollout_log: NamedCall | None = None
    eval_log: NamedCall | None = None
    evaluate: NamedCall | None = None

    async def call(self, hook: NamedCall, values: Mapping[str, Any], timeout_s: float | None = None) -> Any:
        """What a hook gives.

        Raises:
            PluginError: it raised, or took too long; the message names it.
        """
        limit = timeout_s or self.timeout_s
        is_async = style_of(hook.function) == "async"
        with user_code(describe(hook.function), limit):
            return await run_with_deadline(lambda: hook(values), limit, is_async=is_async)


def load_prompt_hooks(plugin: PluginConfig) -> PromptHooks:
    """Every hook that was asked for.

    Raises:
        PluginError: a path that leads nowhere, or a parameter that is not on offer.
    """

    def load(hook: Hook, path: str) -> NamedCall | None:
        return load_hook(hook, path) if path else None

    paths = [path.strip() for path in plugin.rollout_sample_hook_path.split(",") if path.strip()]
    return PromptHooks(
        timeout_s=plugin.hook_timeout_s,
        generate=load(hooks.GENERATE, plugin.custom_generate_function_path),
        sample_hooks=tuple(load_hook(hooks.SAMPLE_HOOK, path) for path in paths),
        dynamic_filter=load(hooks.DYNAMIC_FILTER, plugin.dynamic_sampling_filter_path),
        sample_filter=load(hooks.SAMPLE_FILTER, plugin.rollout_sample_filter_path),
        all_samples=load(hooks.ALL_SAMPLES, plugin.rollout_all_samples_process_path),
        reward_post=load(hooks.REWARD_POST, plugin.custom_reward_post_process_path),
        convert=load(hooks.CONVERT, plugin.custom_convert_samples_to_train_data_path),
        rollout_log=load(hooks.ROLLOUT_LOG, plugin.custom_rollout_log_function_path),
        eval_log=load(hooks.EVAL_LOG, plugin.custom_eval_rollout_log_function_path),
        evaluate=load(hooks.EVAL, plugin.eval_function_path),
    )


def load_data_source(config: Config) -> DataSource:
    """The prompts of `--prompt-data`, or the data source of `--data-source-path`.

    Raises:
        ConfigError: the file is missing or no prompts, or the class has not the methods of a data source.
    """
    plugin, prompts = config.plugin, config.prompts
    if plugin.data_source_path:
        return _own_data_source(config)
    return PromptSource(
        read_prompts(prompts.prompt_data, prompts, ChatFormat.load(config.model.model_path)),
        num_per_prompt=config.rollout.num_rollouts_per_prompt,
        shuffle=prompts.rollout_shuffle,
        seed=prompts.rollout_seed,
        state_dir=config.checkpoint.save_dir / "rollout",
        buffer_filter=_buffer_filter(config) if plugin.buffer_filter_path else None,
    )


def _own_data_source(config: Config) -> DataSource:
    where = f"{hooks.DATA_SOURCE.flag} {config.plugin.data_source_path}"
    make = load_hook(hooks.DATA_SOURCE, config.plugin.data_source_path)
    with user_code(where):
        source: Any = make({"args": slime_arguments(config), "config": plugin_settings(config)})
    missing = [name for name in ("get_samples", "add_samples") if not callable(getattr(source, name, None))]
    if missing:
        raise PluginError(f"{where}: {type(source).__name__} has no {' and no '.join(missing)}")
    return source  # type: ignore[no-any-return]


def _buffer_filter(config: Config) -> BufferFilter:
    hook = load_hook(hooks.BUFFER_FILTER, config.plugin.buffer_filter_path)
    args, settings = slime_arguments(config), plugin_settings(config)

    def choose(buffer: list[Group], num_samples: int) -> list[Group]:
        before = len(buffer)
        offered = {"args": args, "config": settings, "rollout_id": None, "buffer": buffer, "num_samples": num_samples}
        chosen = hook(offered)
        if not isinstance(chosen, list) or len(chosen) > num_samples or before - len(buffer) != len(chosen):
            raise PluginError(
                f"{describe(hook.function)} has to remove at most num_samples groups from buffer and return them"
            )
        return chosen

    return choose
