"""The hooks: the flag that names the plug-in, the default name in the file, the parameters on offer.

Loss and reward have files of their own (`losses`, `rewards`), because published files write them in several styles.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from slime.errors import PluginError
from slime.plugins.calling import NamedCall
from slime.plugins.loading import describe, load_object

Style = Literal["plain", "async", "generator", "async generator"]


def same(*names: str) -> dict[str, str]:
    """Names that are offered under themselves."""
    return {name: name for name in names}


@dataclass(frozen=True)
class Hook:
    """One place where code of the user's may stand in for ours.

    Attributes:
        default_names: what the object is called when the path names only a file; the first that exists is taken.
        names: parameter → the name its value is found under.
        styles: what kinds of function it may be.
    """

    flag: str
    default_names: tuple[str, ...]
    names: Mapping[str, str]
    styles: tuple[Style, ...]
    provided: Mapping[str, object] = field(default_factory=dict)


ROLLOUT = Hook(
    flag="--rollout-function-path",
    default_names=("generate_rollout",),
    names=same("ctx", "store", "judge", "hint_source", "teacher", "owner", "policy_version", "config", "prompts"),
    styles=("async generator",),
)
_CALL = same("args", "rollout_id", "data_source", "evaluation", "config") | {"data_buffer": "data_source"}
SLIME_ROLLOUT = Hook(ROLLOUT.flag, ROLLOUT.default_names, names=_CALL, styles=("plain", "async"))
EVAL = Hook("--eval-function-path", ("generate_rollout", "evaluate"), names=_CALL, styles=("plain", "async"))
_GROUP = {name: "samples" for name in ("samples", "group", "data", "groups", "all_samples", "all_groups")}
_SET = same("args", "config")

GENERATE = Hook(
    flag="--custom-generate-function-path",
    default_names=("generate", "custom_generate"),
    names=same("args", "sample", "sampling_params", "evaluation", "config"),
    styles=("async", "plain"),
)
SAMPLE_HOOK = Hook(
    flag="--rollout-sample-hook-path",
    default_names=("sample_hook", "rollout_sample_hook"),
    names=same("args", "sample", "rollout_id", "evaluation", "config"),
    styles=("plain", "async"),
)
DYNAMIC_FILTER = Hook(
    flag="--dynamic-sampling-filter-path",
    default_names=("dynamic_filter", "dynamic_sampling_filter"),
    names=_SET | _GROUP,
    styles=("plain", "async"),
)
BUFFER_FILTER = Hook(
    flag="--buffer-filter-path",
    default_names=("buffer_filter", "pop_first"),
    names=_SET | same("rollout_id", "buffer", "num_samples"),
    styles=("plain",),
)
SAMPLE_FILTER = Hook(
    flag="--rollout-sample-filter-path",
    default_names=("sample_filter", "rollout_sample_filter"),
    names=_SET | _GROUP,
    styles=("plain", "async"),
)
ALL_SAMPLES = Hook(
    flag="--rollout-all-samples-process-path",
    default_names=("process_all_samples", "all_samples_process"),
    names=_SET | _GROUP | same("data_source"),
    styles=("plain", "async"),
)
REWARD_POST = Hook(
    flag="--custom-reward-post-process-path",
    default_names=("post_process_rewards", "reward_post_process"),
    names=_SET | _GROUP,
    styles=("plain", "async"),
)
CONVERT = Hook(
    flag="--custom-convert-samples-to-train-data-path",
    default_names=("convert_samples", "convert_samples_to_train_data"),
    names=_SET | _GROUP,
    styles=("plain", "async"),
)
DATA_SOURCE = Hook(
    flag="--data-source-path",
    default_names=("DataSource", "get_data_source"),
    names=_SET,
    styles=("plain",),
)
ROLLOUT_LOG = Hook(
    flag="--custom-rollout-log-function-path",
    default_names=("log_rollout", "rollout_log"),
    names=_SET
    | _GROUP
    | same("rollout_id", "extra_metrics", "rollout_time")
    | {"rollout_extra_metrics": "extra_metrics"},
    styles=("plain", "async"),
)
EVAL_LOG = Hook(
    flag="--custom-eval-rollout-log-function-path",
    default_names=("log_eval", "eval_rollout_log"),
    names=_SET | same("rollout_id", "data", "extra_metrics"),
    styles=("plain", "async"),
)
ADVANTAGE = Hook(
    flag="--custom-advantage-function-path",
    default_names=("compute_advantages", "custom_advantage"),
    names=_SET | same("rollout_data"),
    styles=("plain", "async"),
)
ROLLOUT_DATA = Hook(
    flag="--rollout-data-postprocess-path",
    default_names=("postprocess", "rollout_data_postprocess"),
    names=_SET | same("rollout_id", "rollout_data"),
    styles=("plain", "async"),
)
_REPLIES = same("total_lengths", "response_lengths", "loss_masks")
TIS = Hook(
    flag="--custom-tis-function-path",
    default_names=("custom_tis", "custom_tis_function"),
    names=_SET | _REPLIES | same("pg_loss", "train_log_probs", "rollout_log_probs"),
    styles=("plain",),
)
PG_REDUCER = Hook(
    flag="--custom-pg-loss-reducer-function-path",
    default_names=("pg_loss_reducer", "get_pg_loss_reducer"),
    names=_SET | _REPLIES | same("calculate_per_token_loss"),
    styles=("plain",),
)
GROUP_REWARD = Hook(
    flag="--custom-rm-path",
    default_names=("get_reward_model", "reward", "custom_rm", "CustomRewardModel"),
    names=_SET | _GROUP,
    styles=("plain", "async"),
)
REWARD = Hook(
    flag="--custom-rm-path",
    default_names=("get_reward_model", "reward", "custom_rm", "CustomRewardModel"),
    names=same("prompt", "response", "next_state", "messages", "reply", "turn", "sample", "config", "args")
    | {"feedback": "next_state", "next_feedback": "next_state"},
    styles=("plain", "async"),
)
LOSS_TENSORS = same(
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
"""1-D over the trainable tokens of a micro-batch."""

LOSS = Hook(
    flag="--custom-loss-function-path",
    default_names=("compute_loss", "compute_opd_loss", "compute_hybrid_loss"),
    names=LOSS_TENSORS
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
    styles=("plain",),
)


def style_of(function: object) -> Style:
    """What calling it gives: a value, an awaitable, or a stream of values."""
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.isasyncgenfunction(target):
        return "async generator"
    if inspect.iscoroutinefunction(target):
        return "async"
    return "generator" if inspect.isgeneratorfunction(target) else "plain"


def load_rollout(path: str) -> tuple[NamedCall, bool]:
    """A rollout, and whether it gives a stream: an async generator, or a function of `ctx` that returns one. Others
    are called batch by batch, as slime does.

    Raises:
        PluginError: as `load_hook`.
    """
    found = load_object(path, ROLLOUT.default_names, flag=ROLLOUT.flag)
    if callable(found) and style_of(found) == "plain" and "ctx" in inspect.signature(found).parameters:
        return load_hook(dataclasses.replace(ROLLOUT, styles=("plain",)), path), True
    is_stream = not callable(found) or style_of(found) in ("async generator", "generator")
    return load_hook(ROLLOUT if is_stream else SLIME_ROLLOUT, path), is_stream


def load_hook(hook: Hook, path: str) -> NamedCall:
    """The function at `path`, checked against its hook.

    Raises:
        PluginError: one line that names the flag, the file and what would be accepted.
    """
    where = f"{hook.flag} {path}"
    function = load_object(path, hook.default_names, flag=hook.flag, provided=hook.provided)
    if not callable(function):
        raise PluginError(f"{where}: {function!r} is not a function")
    style = "plain" if inspect.isclass(function) else style_of(function)
    if style not in hook.styles:
        article = "an" if style.startswith("async") else "a"
        raise PluginError(
            f"{where}: {describe(function)} is {article} {style} function; this hook takes {' or '.join(hook.styles)}"
        )
    return NamedCall.match(function, hook.names, where=where)
