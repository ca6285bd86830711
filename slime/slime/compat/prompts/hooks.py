"""The hooks of a rollout over prompts: called by setting with a deadline, offered `args` and `config` in every call.

PluginConfig ─ load_prompt_hooks ─▶ LoadedHooks ─▶ PromptHooks.call("dynamic_sampling_filter_path", samples=…)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from slime.compat.names import arguments_now, check_sampled_by, introduce
from slime.compat.sample import RolloutFnTrainOutput, Sample, flatten
from slime.config.sections import Config, PluginConfig
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import PROMPT_HOOKS, load_hook
from slime.plugins.settings import plugin_settings

LoadedHooks = Mapping[str, tuple[NamedCall, ...]]
"""The functions that were asked for, by setting: none, one, or several sample hooks."""


def load_prompt_hooks(plugin: PluginConfig) -> LoadedHooks:
    """Every hook of a rollout over prompts; raises as `load_hook`."""
    loaded: dict[str, tuple[NamedCall, ...]] = {}
    for name, hook in PROMPT_HOOKS.items():
        path = getattr(plugin, name)
        paths = path.split(",") if name == "rollout_sample_hook_path" else [path]
        loaded[name] = tuple(load_hook(hook, each.strip()) for each in paths if each.strip())
    return loaded


class PromptHooks:
    """The hooks of a run.

    Args:
        engine_urls: the engines that hooks may ask: `args` name the next one in each call.

    Attributes:
        config: of the run.
        settings: what hooks are offered as `config`.
    """

    def __init__(
        self,
        config: Config,
        loaded: LoadedHooks,
        engine_urls: Sequence[str] = (),
        stop_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.config = config
        self.settings = plugin_settings(config)
        self._loaded = loaded
        self._args = itertools.cycle(
            [slime_arguments(config, engine_url=url, stop_token_ids=stop_token_ids) for url in engine_urls or [""]]
        )

    @property
    def args(self) -> SimpleNamespace:
        """slime's `args`, with the address of the next engine."""
        return next(self._args)

    def get(self, name: str) -> NamedCall | None:
        """The hook of a setting that names one at most; None where ours does it."""
        return next(iter(self._loaded[name]), None)

    async def call(self, name: str, **values: Any) -> Any:
        """What the hook of a setting gives, the last one of several; None where there is none."""
        given = None
        for hook in self._loaded[name]:
            given = await self._call(hook, self.args, values)
        return given

    async def sample(self, hook: NamedCall, **values: Any) -> Any:
        """What a hook gives that asks engines by itself; its `args` say what serves now.

        Raises:
            PluginError: it failed; or a reply is not by the newest version of the adapter.
        """
        args = await arguments_now(self.args)
        made = await self._call(hook, args, values)
        samples = flatten([made.samples if isinstance(made, RolloutFnTrainOutput) else made])
        check_sampled_by(args.weight_version, (each for each in samples if isinstance(each, Sample)), hook.place)
        return made

    async def _call(self, hook: NamedCall, args: SimpleNamespace, values: Mapping[str, Any]) -> Any:
        return await hook.in_time({"args": args, "config": self.settings, **values}, self.config.plugin.hook_timeout_s)


def groups_per_batch(config: Config) -> int:
    """Prompts that make one update; what slime calls the rollout batch size."""
    return -(-config.rollout.rollout_batch_size // config.rollout.num_rollouts_per_prompt)


def sampling_params(config: Config, stop_token_ids: tuple[int, ...] = ()) -> dict[str, Any]:
    """What a reply to a prompt is sampled with, as an engine's `/generate` takes it."""
    return {
        "temperature": config.prompts.rollout_temperature,
        "max_new_tokens": config.server.default_max_tokens,
        "stop_token_ids": list(stop_token_ids),
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }


def slime_arguments(config: Config, *, engine_url: str = "", stop_token_ids: tuple[int, ...] = ()) -> SimpleNamespace:
    """All settings, and slime's spellings of them.

    Args:
        engine_url: the engine that a function is to ask. There is no router: the caller spreads calls over engines.
    """
    settings = dict(plugin_settings(config))
    engine = urlsplit(engine_url)
    introduce(engine.netloc, config.engine.engine_token, config.lora.shared_adapter)
    num_groups = groups_per_batch(config)
    settings |= {
        "hf_checkpoint": config.model.model_path,
        "rollout_batch_size": num_groups,
        "n_samples_per_prompt": config.rollout.num_rollouts_per_prompt,
        "global_batch_size": config.rollout.rollout_batch_size,
        "over_sampling_batch_size": config.prompts.over_sampling_batch_size or num_groups,
        "rollout_max_response_len": config.server.default_max_tokens,
        "rollout_max_context_len": config.engine.max_context_len or None,
        "rollout_top_p": 1.0,
        "rollout_top_k": -1,
        "rollout_stop": None,
        "rollout_stop_token_ids": list(stop_token_ids),
        "rollout_skip_special_tokens": False,
        "sglang_server_concurrency": config.engine.max_running_requests,
        "sglang_router_ip": engine.hostname,
        "sglang_router_port": engine.port,
        "lora_path": None,
        "weight_version": None,
        "sglang_api_key": config.engine.engine_token or None,
        "sglang_speculative_algorithm": None,
        "use_slime_router": False,
        "partial_rollout": False,
        "reward_key": config.prompts.reward_key or None,
        "eval_reward_key": config.prompts.reward_key or None,
        "sampling_params": sampling_params(config, stop_token_ids),
    }
    return SimpleNamespace(**settings)
