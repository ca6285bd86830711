"""Published spellings that are not ours, and what each of them comes to: the only table of its kind.

People arrive with flags, variables and YAML files from pages written about this system and about slime. Each
spelling here either *becomes* a setting of ours (and says which, once, on stderr), or is *refused* with one line
that says what to do instead, or is *remarked on* where it concerns something that is not here and changes nothing.
Nothing is taken and then ignored.

    --n-samples-per-prompt 4 ─▶ rollout.num_rollouts_per_prompt = 4
    BATCH_SIZE=8, GRAD_ACCUM_STEPS=8 ─▶ rollout.rollout_batch_size = 64
    --rm-type math ─▶ error: name a function …
"""

from __future__ import annotations

import filecmp
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slime.config.sections import flag_of
from slime.errors import ConfigError, nearest

Values = dict[str, Any]
"""Settings by path: `{"loss.eps_clip": "0.1"}`."""

Rule = Callable[[Any, Mapping[str, Any]], tuple[Values, str]]
"""(value, everything else written in the same place) → (settings, what to tell). Raises `ConfigError` to refuse."""

METHODS = {"binary": "openclaw_rl", "opd": "openclaw_opd", "combine": "openclaw_combine"}
"""What the published pages call a method, and the package that is it."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A published meaning, in all its spellings.

    Attributes:
        names: flags (`--clip-range`), environment variables (`BATCH_SIZE`) and YAML keys (`training.batch_size`).
        section: the section it speaks of; a program that has no such section does not look at it.
        means: for the documentation.
    """

    names: tuple[str, ...]
    section: str
    means: str
    rule: Rule


# ── Rules: what a spelling may come to ──────────────────────────────────────────────────────────────────────────────


def _taken(values: Values, remark: str = "") -> tuple[Values, str]:
    """Settings, with a notice of the flags that would have said the same."""
    return values, "taken as " + " ".join(f"{flag_of(path)} {value}" for path, value in values.items()) + remark


def becomes(*paths: str) -> Rule:
    """Another name of a setting, or of several that it sets together."""
    return lambda value, _: _taken(dict.fromkeys(paths, value))


def refused(why: str) -> Rule:
    """Something that is not there, or cannot be meant; switched off, it is no wish and passes."""

    def rule(value: Any, _: Mapping[str, Any]) -> tuple[Values, str]:
        if _is_off(value):
            return {}, ""
        raise ConfigError(why)

    return rule


def always(what: str, *accepted: str) -> Rule:
    """What is so in any case: the accepted words pass with a notice, others are refused."""

    def rule(value: Any, _: Mapping[str, Any]) -> tuple[Values, str]:
        if str(value).lower() in accepted:
            return {}, what
        raise ConfigError(f"{value!r} cannot be had: {what}")

    return rule


def remark(what: str) -> Rule:
    """A variable that may well stand in the environment for other reasons: said, not refused."""
    return lambda value, _: ({}, what)


def needless(what: str) -> Rule:
    """A flag or key about something that this run does not have: said, with its value; switched off, it is no wish."""
    return lambda value, _: ({}, "") if _is_off(value) else ({}, f"{value} {what}")


def times(factor_name: str) -> Rule:
    """A batch size that is multiplied by the accumulation steps written beside it."""

    def rule(value: Any, given: Mapping[str, Any]) -> tuple[Values, str]:
        factor = given.get(factor_name, 1)
        if not (_is_count(value) and _is_count(factor)):
            raise ConfigError(f"{value!r} times {factor_name} {factor!r} is not a number of samples")
        bound = "; an update takes them all, and memory is bounded by --max-tokens-per-gpu" if int(factor) > 1 else ""
        return _taken({"rollout.rollout_batch_size": int(value) * int(factor)}, bound)

    return rule


def factor_of(batch_name: str) -> Rule:
    """Accumulation steps: they say nothing without the batch size they multiply."""

    def rule(value: Any, given: Mapping[str, Any]) -> tuple[Values, str]:
        if batch_name in given:
            return {}, f"multiplies {batch_name}"
        if _is_count(value) and int(value) == 1:
            return {}, ""
        raise ConfigError(
            f"needs {batch_name} beside it: one update takes their product; --max-tokens-per-gpu cuts micro-batches"
        )

    return rule


def switches(path: str, value: str) -> Rule:
    """A switch that stands for one value of a setting; switched off, it says nothing."""
    return lambda given, _: ({}, "") if _is_off(given) else _taken({path: value})


def same_as(*model_names: str) -> Rule:
    """A tokenizer path: accepted where it says what is so, that the tokenizer is the model's own."""

    def rule(value: Any, given: Mapping[str, Any]) -> tuple[Values, str]:
        model_dirs = [given[name] for name in model_names if given.get(name)]
        if value in model_dirs or any(_is_same_tokenizer(value, model_dir) for model_dir in model_dirs):
            return {}, "the tokenizer is read from the model directory"
        raise ConfigError("the tokenizer is read from the model directory; put its files there and leave this out")

    return rule


def _is_same_tokenizer(directory: Any, model_dir: Any) -> bool:
    own, model = (Path(str(place)).expanduser() / "tokenizer.json" for place in (directory, model_dir))
    return own.is_file() and model.is_file() and filecmp.cmp(own, model, shallow=False)


def samples_to_updates(value: Any, given: Mapping[str, Any]) -> tuple[Values, str]:
    """Warm-up counted in samples: divided by the batch size given in the same place."""
    batch = given.get("--rollout-batch-size", 0)
    if not (_is_count(value) and _is_count(batch) and int(batch)):
        raise ConfigError("counts samples and needs --rollout-batch-size beside it; --lr-warmup-steps counts updates")
    return _taken({"trainer.lr_warmup_steps": -(-int(value) // int(batch))})


def voting(value: Any, _: Mapping[str, Any]) -> tuple[Values, str]:
    if _is_off(value):
        return _taken({"judge.majority_vote_n": 1})
    return {}, "every llm verdict is a majority vote; --majority-vote-n says of how many"


def judge_model(value: Any, _: Mapping[str, Any]) -> tuple[Values, str]:
    """A directory, or the name of a model that somebody serves: `gpt-4`."""
    name = str(value)
    if "/" in name or name.startswith((".", "~")) or Path(name).is_dir():
        return _taken({"judge.judge": "llm", "judge.judge_model_path": value})
    return _taken({"judge.judge": "llm", "judge.judge_model": name}, ", at --judge-url")


def value_clip(value: Any, _: Mapping[str, Any]) -> tuple[Values, str]:
    """How far a value may move in one batch; published as a switch too, which stands for the default."""
    is_on = str(value).strip().lower() in ("true", "yes", "on")
    return _taken({"loss.value_clip": "0.2" if is_on else "0" if _is_off(value) else value})


def evaluation_every(value: Any, given: Mapping[str, Any]) -> tuple[Values, str]:
    if given.get("prompts.eval_prompt_data"):
        return _taken({"prompts.eval_interval": value})
    return {}, (
        f"no effect: a run evaluates on prompts, --eval-prompt-data NAME=FILE --eval-interval {value}; "
        "a checkpoint is evaluated by openclaw-test/run_eval.sh"
    )


def method(value: Any, _: Mapping[str, Any]) -> tuple[Values, str]:
    package = METHODS.get(str(value))
    if package is None:
        raise ConfigError(f"{value!r} is not one of {', '.join(METHODS)}{nearest(str(value), METHODS)}")
    hooks = {"custom_loss_function_path": "custom_loss", "rollout_function_path": "custom_rollout"}
    return _taken({f"plugin.{name}": f"{package}.{file}" for name, file in hooks.items()})


def _is_off(value: Any) -> bool:
    return str(value).strip().lower() in ("false", "0", "no", "off")


def _is_count(value: Any) -> bool:
    return str(value).isdecimal()


# fmt: off
# ── The tables: one meaning a line, in all its spellings ────────────────────────────────────────────────────────────

_SAME: Mapping[str, tuple[str, ...]] = {
    "model.model_path": ("--hf-checkpoint", "CKPT_PATH", "model.checkpoint_path"),
    "model.served_model_name": ("model.name",),
    "engine.engine_gpus": ("--gpu-ids",),
    "engine.max_running_requests": ("--sglang-server-concurrency",),
    "server.rl_buffer_dir": ("--rollout-dir",),
    "server.default_max_tokens": ("--rollout-max-response-len",),
    "judge.prm_model_path": ("--rm-checkpoint",),
    "judge.num_judge_workers": ("--num-rollout-workers", "rollout.num_workers"),
    "judge.majority_vote_n": ("--num-judges", "evaluation.num_judges", "rollout_config.reward_computation.num_samples"),
    "judge.majority_vote_threshold": ("--consensus-threshold", "evaluation.consensus_threshold"),
    "rollout.num_rollouts_per_prompt": ("--n-samples-per-prompt",),
    "rollout.num_rollout": ("training.max_steps",),
    "loss.value_clip": ("training.value_clip_ratio",),
    "loss.lambd": ("training.gae_lambda",),
    "loss.w_rl": ("training.binary_weight",),
    "loss.w_opd": ("training.opd_weight",),
    "trainer.lr": ("training.learning_rate",),
    "trainer.lr_warmup_steps": ("training.warmup_steps",),
    "checkpoint.save_dir": ("--save", "--checkpoint-dir"),
    "checkpoint.resume_from_checkpoint": ("--load",),
    "cluster.train_gpus": ("--gpus",),
}
"""A setting of ours → its other names."""

_TABLE: list[Alias] = [
    *(Alias(names, path.partition(".")[0], f"`{flag_of(path)}`", becomes(path)) for path, names in _SAME.items()),
    Alias(("--clip-range", "--ppo-clip-ratio", "PPO_CLIP_RATIO", "training.ppo_clip_ratio"), "loss", "`--eps-clip` and `--eps-clip-high`", becomes("loss.eps_clip", "loss.eps_clip_high")),
    # what takes a rule
    Alias(("--method", "training.method"), "plugin", "the loss and the rollout of `binary`, `opd` or `combine`", method),
    Alias(("TOKENIZER_PATH", "model.tokenizer_path"), "model", "the model directory's own", same_as("CKPT_PATH", "MODEL_PATH", "BASE_MODEL_PATH", "model.checkpoint_path", "model.model_path")),
    Alias(("BATCH_SIZE",), "rollout", "`--rollout-batch-size`, times `GRAD_ACCUM_STEPS`", times("GRAD_ACCUM_STEPS")),
    Alias(("GRAD_ACCUM_STEPS",), "rollout", "multiplies `BATCH_SIZE`", factor_of("BATCH_SIZE")),
    Alias(("training.batch_size",), "rollout", "`--rollout-batch-size`, times the accumulation steps", times("training.gradient_accumulation_steps")),
    Alias(("training.gradient_accumulation_steps",), "rollout", "multiplies `training.batch_size`", factor_of("training.batch_size")),
    Alias(("--lr-warmup-samples",), "trainer", "`--lr-warmup-steps`, divided by the batch", samples_to_updates),
    Alias(("VALUE_CLIP",), "loss", "`--value-clip`; `true`: its default", value_clip),
    Alias(("--use-tis",), "loss", "`--behaviour-correction decoupled`", switches("loss.behaviour_correction", "decoupled")),
    Alias(("--use-rollout-logprobs",), "loss", "`--behaviour-correction tis`", switches("loss.behaviour_correction", "tis")),
    Alias(("--disable-grpo-std-normalization",), "loss", "`--no-grpo-std-normalization`", switches("loss.grpo_std_normalization", "false")),
    Alias(("--disable-rewards-normalization",), "loss", "`--no-rewards-normalization`", switches("loss.rewards_normalization", "false")),
    Alias(("evaluation.judge_model", "training.hint_extraction_model"), "judge", "a directory: `--judge-model-path`; a name: `--judge-model`; with `--judge llm`", judge_model),
    Alias(("evaluation.majority_voting",), "judge", "`false`: one vote", voting),
    Alias(("evaluation.eval_frequency",), "prompts", "`--eval-interval`, where there are prompts to evaluate on", evaluation_every),
    # what is so in any case
    Alias(("--reward-aggregation", "rollout_config.reward_computation.aggregation"), "judge", "`majority`, always", always("votes are always decided by majority", "majority")),
    Alias(("rollout_config.reward_computation.type",), "judge", "`next_state_feedback`, always", always("a turn is judged by what its next state says of it", "next_state_feedback")),
    Alias(("training.teacher_temperature",), "teacher", "1, always", always("a teacher is asked for its own distribution, at temperature 1", "1", "1.0")),
    Alias(("--num-epochs",), "trainer", "1, always", always("every sample is trained once", "1")),
    Alias(("--loss-type",), "loss", "`policy_loss` or `custom_loss`", always("the path of a custom loss says it", "policy_loss", "custom_loss")),
    Alias(("--use-kl-loss",), "loss", "always", always("on while --kl-loss-coef is above 0", "true")),
    Alias(("--partial-rollout",), "prompts", "always", always("generation goes on while weights are swapped", "true")),
    Alias(("--async-collection", "rollout_config.collection_mode"), "rollout", "always", always("serving, judging and training are always asynchronous", "true", "async", "1", "yes")),
    Alias(("rollout.session_aware",), "rollout", "always", always("turns are always kept by session", "true", "1", "yes")),
    Alias(("rollout_config.trajectory_format",), "rollout", "`multi_turn`, always", always("the turns of a session are one trajectory", "multi_turn")),
    Alias(("rollout_config.message_classification.main_line", "rollout_config.message_classification.side"), "rollout", "built in", remark("built in: a request that continues its conversation is main line, a client's titles, summaries and other housekeeping are side")),
    # what is not here
    Alias(("--rm-type",), "plugin", "refused: `--custom-rm-path`", refused("name a function: --custom-rm-path FILE.py")),
    Alias(("--custom-model-provider-path", "--custom-megatron-init-path", "--custom-megatron-before-log-prob-hook-path", "--custom-megatron-before-train-step-hook-path", "--custom-update-weight-post-write-path"), "plugin", "refused: Megatron's", refused("this hook is Megatron's; the trainers here are torch's: leave it out")),
    Alias(("rollout_config.max_concurrent_sessions",), "server", "no such limit", remark("no such limit: a session that waits costs no place; --max-concurrent-requests bounds the requests under way")),
    Alias(("rollout_config.session_timeout",), "server", "no such limit", remark("no such limit: a session goes on whenever its next request comes; turns that nobody answers are never trained")),
    Alias(("--max-turns", "--parallel-envs", "rollout.max_turns", "rollout.parallel_envs"), "rollout", "no effect: agent tracks", needless("is for agent tracks (terminal, gui, swe, toolcall), which are not built yet: nothing here reads it")),
    Alias(("ENV_TYPE", "MAX_STEPS", "PARALLEL_ENVS", "SCREENSHOT_BACKEND", "TOOLS_CONFIG", "SWE_BENCH_PATH", "TASK_TYPE"), "rollout", "no effect: agent tracks", remark("not used: agent tracks (terminal, gui, swe, toolcall) are not built yet; this run learns from conversations")),
    Alias(("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "GPUS_PER_NODE"), "cluster", "not used: Ray places the ranks", remark("not used: Ray places the ranks; see --ray-address, --train-gpus and --rollout-gpus")),
    Alias(("TINKER_API_KEY", "TINKER_ENDPOINT", "TINKER_PROJECT_ID", "FIREWORKS_API_KEY"), "cluster", "not used: no remote trainers", remark("not used: remote trainers are not built yet, this run trains on its own machines")),
]
# fmt: on


def _where(name: str) -> Literal["flag", "env", "yaml"]:
    if name.startswith("--"):
        return "flag"
    return "yaml" if "." in name else "env"


ALIASES: dict[tuple[str, str], Alias] = {(_where(name), name): alias for alias in _TABLE for name in alias.names}
"""By the kind of spelling (`flag`, `env`, `yaml`) and the spelling itself."""

READ_BY_LIBRARIES: dict[str, str] = {
    "WANDB_API_KEY": "read by wandb itself, and only with --use-wandb",
    "WANDB_MODE": "read by wandb itself; offline when unset",
    "HF_TOKEN": "read by huggingface_hub's own download command; a run downloads nothing",
    "CUDA_VISIBLE_DEVICES": "read by CUDA; Ray sets it for the actors it places",
    "OMP_NUM_THREADS": "read by OpenMP; one thread a process is best where several share few cores",
}
"""Variables that published instructions name and that we leave to those they belong to."""
