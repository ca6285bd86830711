"""The settings as functions written for slime read them: attributes of `args`, under slime's names too.

Config ─▶ args.rollout_batch_size (prompts!), args.n_samples_per_prompt, args.sglang_router_ip, …
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from slime.compat.names import introduce
from slime.config import Config
from slime.plugins.settings import plugin_settings


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
