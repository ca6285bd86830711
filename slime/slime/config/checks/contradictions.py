"""Settings that exclude each other, and settings that a run of this kind would never read: all of them, in one file.

    Config ─ check_settings ─▶ │ no code is loaded: a fraction of a second
    Config, RolloutFacts ─ check_rollout ─▶ │ the rollout function is loaded
    Config, what a loss asks for ─ check_loss ─▶ │ the loss is loaded

Each raises a `ConfigError` of one line that names the flags and the way out. `slime.preflight` calls them, for
`slime/train.py` and for the launch scripts alike. Missing files, packages and GPUs are `startup`'s to report; a setting
without an effect is a note of `remarks`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Set
from dataclasses import dataclass

from slime.config.checks.conditions import PROMPTS
from slime.config.sections import Config, LoraConfig, LossConfig, PluginConfig, flag_of
from slime.errors import ConfigError


class RolloutKind(enum.Enum):
    """What `--rollout-function-path` names; the value is how messages call it."""

    CONVERSATIONS = "a rollout of conversations"
    PROMPTS = "the rollout over prompts"
    BATCHES = "a rollout function in slime's call style"


@dataclass(frozen=True)
class RolloutFacts:
    """What is known of a rollout once it is loaded.

    Attributes:
        path: as it was written.
        gives_groups: whether a rollout of conversations declares that its groups hold several replies to one request.
        max_compared: replies that a judge compares at most.
        uncalled: settings of the hooks that it does not call.
    """

    kind: RolloutKind
    path: str
    gives_groups: bool
    max_compared: int
    uncalled: Iterable[str]


_OF_PROMPTS = ("group_rm", "reward_key", "eval_prompt_data", "eval_interval", "over_sampling_batch_size")
_CHARGED = frozenset(("advantages", "returns", "batch", "reference_kl"))
"""What a loss reads the KL in the reward from."""


# ---- without loading any code


def check_settings(config: Config) -> None:
    """Raise a ConfigError where settings exclude each other."""
    check_loss_settings(config.loss)
    if config.lora.use_lora:
        _check_lora(config)
    elif config.lora != LoraConfig():
        raise ConfigError("--lora-… and --adapter-per say what kind of adapter is trained: add --use-lora")
    judge, interval, max_staleness = config.judge, config.checkpoint.publish_interval, config.rollout.max_staleness
    if judge.judge_quorum > judge.majority_vote_n:
        raise ConfigError(
            f"--judge-quorum {judge.judge_quorum} can never be reached with "
            f"--majority-vote-n {judge.majority_vote_n}: cast more votes, or need fewer"
        )
    if interval > max_staleness + 1:
        raise ConfigError(
            f"--publish-interval {interval}: engines would fall {interval - 1} updates behind, and --max-staleness "
            f"{max_staleness} drops what they sample then; publish every {max_staleness + 1} updates at least"
        )
    if config.engine.engine_gpus:
        raise ConfigError(f"--engine-gpus {config.engine.engine_gpus} is the server's: a run takes --rollout-gpus")
    if config.rollout.data_path and config.cluster.serve:
        raise ConfigError("--serve and --data-path: a run on recorded conversations serves nobody; leave out one")


def check_loss_settings(loss: LossConfig) -> None:
    """Raise a ConfigError where the settings of a loss exclude each other."""
    if loss.kl_coef and loss.kl_loss_coef:
        raise ConfigError(
            f"--kl-coef {loss.kl_coef:g} and --kl-loss-coef {loss.kl_loss_coef:g} are the same KL twice, in the reward "
            "and in the loss: set one of them to 0"
        )
    if loss.kl_coef and loss.kl_loss_type not in ("k1", LossConfig.kl_loss_type):
        raise ConfigError(
            f"--kl-loss-type {loss.kl_loss_type} is of the KL in the loss; in the reward, where --kl-coef "
            f"{loss.kl_coef:g} has it, only k1 holds the policy: leave --kl-loss-type out, or use --kl-loss-coef"
        )
    is_own_baseline = loss.advantage_estimator == "reinforce" and loss.baseline != "none"
    if not loss.rewards_normalization and (is_own_baseline or loss.advantage_estimator in ("rloo", "step_wise")):
        raise ConfigError(
            f"--no-rewards-normalization takes rewards as they are, and {_comparing_flag(loss)} does not: "
            "--advantage-estimator reinforce --baseline none does"
        )
    if 0 < loss.eps_clip_c <= 1:
        raise ConfigError(f"--eps-clip-c {loss.eps_clip_c:g}: the dual-clip constant is above 1, or 0 for no dual clip")
    if loss.tis_clip_low > loss.tis_clip:
        raise ConfigError(f"--tis-clip-low {loss.tis_clip_low:g} is above --tis-clip {loss.tis_clip:g}")
    if loss.num_critic_only_steps and loss.advantage_estimator != "ppo":
        raise ConfigError(
            f"--num-critic-only-steps needs --advantage-estimator ppo: {loss.advantage_estimator} has no critic"
        )
    if loss.mis_veto_threshold and loss.behaviour_correction != "mis":
        raise ConfigError(
            f"--mis-veto-threshold is for --behaviour-correction mis, not {loss.behaviour_correction}: change one of "
            "them"
        )
    if loss.calculate_per_token_loss and loss.advantage_estimator == "dr_grpo":
        raise ConfigError(
            "--calculate-per-token-loss and --advantage-estimator dr_grpo, which divides by a constant: choose one"
        )


def _comparing_flag(loss: LossConfig) -> str:
    """The flag that says what a reward is compared with."""
    if loss.advantage_estimator == "reinforce":
        return f"--baseline {loss.baseline}"
    return f"--advantage-estimator {loss.advantage_estimator}"


def _check_lora(config: Config) -> None:
    """Adapters that cannot be trained or served as they are asked for."""
    if config.lora.adapter_per != "user":
        return
    if config.lora.lora_publish == "merged":
        raise ConfigError("--adapter-per user: whole weights can only be one user's; leave --lora-publish merged out")
    for name in ("save_interval", "publish_interval"):
        if getattr(config.checkpoint, name) > 1:
            raise ConfigError(
                f"--adapter-per user: each update is one user's, served and saved; leave {flag_of(name)} out"
            )
    if config.loss.advantage_estimator == "ppo":
        raise ConfigError("--adapter-per user: a critic is nobody's own; choose another --advantage-estimator")


# ---- once the rollout is loaded


def check_rollout(config: Config, rollout: RolloutFacts) -> None:
    """Raise a ConfigError where the rollout would not call a hook, has no prompts or too many, or compares nothing."""
    _check_hooks_are_called(config, rollout)
    if rollout.kind is RolloutKind.CONVERSATIONS:
        _check_conversations(config, rollout)
    else:
        _check_prompts(config, rollout)
    if config.judge.judge_siblings:
        _check_comparing(config, rollout)


def _check_hooks_are_called(config: Config, rollout: RolloutFacts) -> None:
    is_live = rollout.kind is RolloutKind.CONVERSATIONS
    remedy = "it needs --prompt-data or --data-source-path" if is_live else "call it there, or leave it out"
    for name in rollout.uncalled:
        if path := getattr(config.plugin, name):
            raise ConfigError(f"{flag_of(name)} {path}: {rollout.kind.value} does not call it; {remedy}")


def _check_conversations(config: Config, rollout: RolloutFacts) -> None:
    if PROMPTS.holds(config):
        raise ConfigError(
            f"--prompt-data: --rollout-function-path {rollout.path} asks for no `prompts`; leave one of them out"
        )
    for name in _OF_PROMPTS:
        if getattr(config.prompts, name):
            raise ConfigError(f"{flag_of(name)} is for prompts: it needs --prompt-data")
    if config.loss.compares_groups and not rollout.gives_groups:
        raise ConfigError(
            f"{_comparing_flag(config.loss)} compares replies to one prompt, and people get only one: "
            "use --advantage-estimator reinforce --baseline ema"
        )


def _check_prompts(config: Config, rollout: RolloutFacts) -> None:
    prompts, plugin = config.prompts, config.plugin
    if config.lora.use_lora and config.lora.adapter_per == "user":
        raise ConfigError("--adapter-per user: prompts are no user's; with --prompt-data leave it out")
    if rollout.kind is RolloutKind.PROMPTS:
        _check_sampled_groups(config, rollout)
    if plugin.data_source_path and plugin.buffer_filter_path:
        raise ConfigError("--buffer-filter-path: filters the buffer of --prompt-data; leave one of them out")
    if prompts.group_rm and not plugin.custom_rm_path:
        raise ConfigError("--group-rm says what --custom-rm-path takes; give it, or leave this out")
    wants_eval = bool(prompts.eval_prompt_data or plugin.eval_function_path)
    if wants_eval != bool(prompts.eval_interval):
        raise ConfigError("--eval-interval goes with --eval-prompt-data or --eval-function-path: give both, or neither")
    if prompts.eval_prompt_data and plugin.eval_function_path:
        raise ConfigError("--eval-function-path has prompts of its own; leave --eval-prompt-data out")


def _check_sampled_groups(config: Config, rollout: RolloutFacts) -> None:
    """Groups that our rollout over prompts samples itself: from a source, with a reward, of a size to be compared."""
    if not PROMPTS.holds(config):
        raise ConfigError(
            f"--rollout-function-path {rollout.path} needs prompts: give --prompt-data or --data-source-path"
        )
    plugin = config.plugin
    if not (plugin.custom_rm_path or plugin.custom_generate_function_path or config.judge.judge_siblings):
        raise ConfigError(
            "replies to prompts need a reward: give --custom-rm-path, or have a model compare them with "
            "--judge llm --judge-siblings"
        )
    if config.loss.compares_groups and config.rollout.num_rollouts_per_prompt == 1:
        raise ConfigError(
            "the advantage compares replies to one prompt, and --num-rollouts-per-prompt is 1: nothing would be learned"
        )


def _check_comparing(config: Config, rollout: RolloutFacts) -> None:
    """`--judge-siblings`: a language model ranks the replies, and nothing is asked that a ranking does not say."""
    if config.plugin.custom_rm_path:
        raise ConfigError("--judge-siblings: --custom-rm-path gives the rewards; leave one of them out")
    if config.judge.judge != "llm":
        raise ConfigError("--judge-siblings: only a language model compares replies; add --judge llm, or leave it out")
    if rollout.kind is RolloutKind.CONVERSATIONS:
        return
    number = config.rollout.num_rollouts_per_prompt
    if not 2 <= number <= rollout.max_compared:
        raise ConfigError(
            f"--judge-siblings compares 2 to {rollout.max_compared} replies to a prompt; --num-rollouts-per-prompt is "
            f"{number}"
        )
    if config.prompts.eval_prompt_data:
        raise ConfigError(
            "--judge-siblings says which of several replies is better, not how good a model is: "
            "--eval-prompt-data needs --custom-rm-path"
        )


# ---- once the loss is loaded


def check_loss(config: Config, name: str, asks_for: Set[str]) -> None:
    """Raise a ConfigError where the loss would never use a setting, or needs one that is not given.

    Args:
        name: as messages call it, e.g. `custom_loss.py:compute_loss`.
        asks_for: the names that it reads.
    """
    loss, plugin = config.loss, config.plugin
    check_kl_is_read(loss, name, asks_for)
    check_policy_loss_hooks(plugin, loss, name, asks_for)
    if "teacher_topk_ids" in asks_for and not config.teacher.teacher_top_k:
        raise ConfigError(
            f"--custom-loss-function-path {plugin.custom_loss_function_path} compares k ids a token: "
            "give --teacher-top-k, e.g. 50"
        )


def check_policy_loss_hooks(plugin: PluginConfig, loss: LossConfig, name: str, asks_for: Set[str]) -> None:
    """Raise a ConfigError where a hook in the policy loss would not be called, or there are no weights to replace."""
    for hook in ("custom_tis_function_path", "custom_pg_loss_reducer_function_path"):
        if (path := getattr(plugin, hook)) and "policy_objective" not in asks_for:
            raise ConfigError(
                f"{flag_of(hook)} {path}: {name} would never call it; one that asks for policy_objective does"
            )
    if plugin.custom_tis_function_path and loss.behaviour_correction != "decoupled":
        raise ConfigError(
            "--custom-tis-function-path takes the place of the weights of --behaviour-correction decoupled "
            f"(--use-tis), not of {loss.behaviour_correction}: ask for that one"
        )


def check_kl_is_read(loss: LossConfig, name: str, asks_for: Set[str]) -> None:
    """Raise a ConfigError where `--kl-coef` changes advantages that the loss does not read."""
    if not loss.kl_coef:
        return
    if not asks_for & _CHARGED:
        raise ConfigError(
            f"--kl-coef {loss.kl_coef:g} takes the KL from the advantages, and {name} reads none: use --kl-loss-coef"
        )
    if not loss.w_rl and "config" in asks_for:
        raise ConfigError(
            f"--kl-coef {loss.kl_coef:g} takes the KL from the reward's advantages, and --w-rl 0 leaves those "
            "out: use --kl-loss-coef"
        )
