"""The hooks: the setting whose path names the plug-in, its default names in a file, the parameters on offer.

Loss and reward are loaded in files of their own (`losses`, `rewards`): published files write them in several styles.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass

from slime.config.sections import PluginConfig
from slime.errors import PluginError
from slime.plugins.calling import NamedCall, Style, style_of
from slime.plugins.loading import describe, load_object

_PLAIN: tuple[Style, ...] = ("plain",)


def same(*names: str) -> dict[str, str]:
    """Names that are offered under themselves."""
    return {name: name for name in names}


@dataclass(frozen=True)
class Hook:
    """One place where code of the user's may stand in for ours.

    Attributes:
        setting: of the path, in `PluginConfig`.
        default_names: what the object is called when the path names only a file; the first that exists is taken.
        names: parameter → the name its value is found under.
        styles: what kinds of function it may be.
    """

    setting: str
    default_names: tuple[str, ...]
    names: Mapping[str, str]
    styles: tuple[Style, ...] = ("plain", "async")

    @property
    def flag(self) -> str:
        """As the user types it: `--buffer-filter-path`."""
        return f"--{self.setting.replace('_', '-')}"


def _by_setting(*hooks: Hook) -> dict[str, Hook]:
    return {hook.setting: hook for hook in hooks}


_SET = same("args", "config")
_SAMPLES = _SET | dict.fromkeys(("samples", "group", "data", "groups", "all_samples", "all_groups"), "samples")
_CALL = _SET | same("rollout_id", "data_source", "evaluation") | {"data_buffer": "data_source"}
_FIGURES = same("rollout_id", "extra_metrics")
_REPLIES = _SET | same("total_lengths", "response_lengths", "loss_masks")

ROLLOUT = Hook(
    "rollout_function_path",
    ("generate_rollout",),
    same("ctx", "store", "judge", "hint_source", "teacher", "owner", "policy_version", "config", "prompts"),
    ("async generator",),
)
SLIME_ROLLOUT = Hook(ROLLOUT.setting, ROLLOUT.default_names, _CALL)
SAMPLING_HOOKS = _by_setting(
    Hook(
        "custom_generate_function_path",
        ("generate", "custom_generate"),
        _SET | same("sample", "sampling_params", "evaluation"),
    ),
    Hook(
        "rollout_sample_hook_path",
        ("sample_hook", "rollout_sample_hook"),
        _SET | same("sample", "rollout_id", "evaluation"),
    ),
    Hook("dynamic_sampling_filter_path", ("dynamic_filter", "dynamic_sampling_filter"), _SAMPLES),
    Hook("rollout_sample_filter_path", ("sample_filter", "rollout_sample_filter"), _SAMPLES),
    Hook(
        "rollout_all_samples_process_path",
        ("process_all_samples", "all_samples_process"),
        _SAMPLES | same("data_source"),
    ),
)
"""By setting, those that our own loop over prompts alone calls."""
PROMPT_HOOKS = SAMPLING_HOOKS | _by_setting(
    Hook(
        "buffer_filter_path", ("buffer_filter", "pop_first"), _SET | same("rollout_id", "buffer", "num_samples"), _PLAIN
    ),
    Hook("data_source_path", ("DataSource", "get_data_source"), _SET, _PLAIN),
    Hook("custom_reward_post_process_path", ("post_process_rewards", "reward_post_process"), _SAMPLES),
    Hook("custom_convert_samples_to_train_data_path", ("convert_samples", "convert_samples_to_train_data"), _SAMPLES),
    Hook(
        "custom_rollout_log_function_path",
        ("log_rollout", "rollout_log"),
        _SAMPLES | _FIGURES | same("rollout_time") | {"rollout_extra_metrics": "extra_metrics"},
    ),
    Hook("eval_function_path", ("generate_rollout", "evaluate"), _CALL),
    Hook("custom_eval_rollout_log_function_path", ("log_eval", "eval_rollout_log"), _SET | _FIGURES | same("data")),
)
"""By setting, all that a rollout over prompts calls."""
ADVANTAGE = Hook(
    "custom_advantage_function_path", ("compute_advantages", "custom_advantage"), _SET | same("rollout_data")
)
ROLLOUT_DATA = Hook(
    "rollout_data_postprocess_path",
    ("postprocess", "rollout_data_postprocess"),
    _SET | same("rollout_id", "rollout_data"),
)
TIS = Hook(
    "custom_tis_function_path",
    ("custom_tis", "custom_tis_function"),
    _REPLIES | same("pg_loss", "train_log_probs", "rollout_log_probs"),
    _PLAIN,
)
PG_REDUCER = Hook(
    "custom_pg_loss_reducer_function_path",
    ("pg_loss_reducer", "get_pg_loss_reducer"),
    _REPLIES | same("calculate_per_token_loss"),
    _PLAIN,
)
REWARD = Hook(
    "custom_rm_path",
    ("get_reward_model", "reward", "custom_rm", "CustomRewardModel"),
    _SET
    | same("prompt", "response", "next_state", "messages", "reply", "turn", "sample")
    | {"feedback": "next_state", "next_feedback": "next_state"},
)
GROUP_REWARD = Hook(REWARD.setting, REWARD.default_names, _SAMPLES)
LOSS = Hook(
    "custom_loss_function_path",
    ("compute_loss", "compute_opd_loss", "compute_hybrid_loss"),
    # 1-D over the trainable tokens of a micro-batch
    same(
        "policy_logprobs",
        "rollout_logprobs",
        "proximal_logprobs",
        "reference_logprobs",
        "untempered_rollout_logprobs",
        "teacher_logprobs",
        "tempered_teacher_logprobs",
        "advantage_mask",
        "advantages",
        "rewards",
        "loss_mask",
        "sample_index",
        "turn_index",
        "sequence_index",
    )
    | same(
        "config",
        "sum_of_sample_mean",
        "policy_topk_logprobs",
        "policy_topk_and_tail_logprobs",
        "compute_entropy",
        "compute_full_kl",
        "args",
        "batch",
        "logits",
        "clip_ratio",
        "binary_weight",
        "opd_weight",
        "policy_objective",
    )
    | {
        "policy_logits": "policy_logprobs",  # published files use them as log-probs of the sampled tokens
        "reference_logits": "reference_logprobs",
        "student_logprobs": "policy_logprobs",
        "scalar_rewards": "rewards",
    },
    _PLAIN,
)


def load_rollout(path: str) -> tuple[NamedCall, bool]:
    """A rollout, and whether it gives a stream: an async generator, or a function of `ctx` that returns one.

    Others are called batch by batch, as slime does. Raises as `load_hook`.
    """
    found = load_object(path, ROLLOUT.default_names, flag=ROLLOUT.flag)
    hook = SLIME_ROLLOUT
    if not callable(found) or style_of(found) in ("async generator", "generator"):
        hook = ROLLOUT
    elif style_of(found) == "plain" and "ctx" in inspect.signature(found).parameters:
        hook = dataclasses.replace(ROLLOUT, styles=_PLAIN)
    return matched(hook, found, path), hook is not SLIME_ROLLOUT


def load_hook(hook: Hook, path: str) -> NamedCall:
    """The function at `path`, checked against its hook.

    Raises:
        PluginError: one line that names the flag, the file and what would be accepted.
    """
    return matched(hook, load_object(path, hook.default_names, flag=hook.flag), path)


def asked_for(hook: Hook, plugin: PluginConfig) -> NamedCall | None:
    """The function that the settings name; None where they name none. Raises as `load_hook`."""
    path = getattr(plugin, hook.setting)
    return load_hook(hook, path) if path else None


def matched(hook: Hook, function: object, path: str) -> NamedCall:
    """What was found at `path`, checked as by `load_hook`."""
    where = f"{hook.flag} {path}"
    if not callable(function):
        raise PluginError(f"{where}: {function!r} is not a function")
    style = "plain" if inspect.isclass(function) else style_of(function)
    if style not in hook.styles:
        article = "an" if style.startswith("async") else "a"
        raise PluginError(
            f"{where}: {describe(function)} is {article} {style} function; this hook takes {' or '.join(hook.styles)}"
        )
    return NamedCall.match(function, hook.names, where=where)
