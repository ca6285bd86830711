"""The configuration tree: one frozen dataclass per concern, each leaf declared once with its help.

Flags, environment variables, YAML keys and `docs/configuration.md` are generated from what stands
here (`max_staleness` is `--max-staleness`, YAML `rollout: {max_staleness: 4}`). A component is handed
its own section, never the whole tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slime.config.checks import conditions as when
from slime.config.checks.conditions import Condition

SHARED_ADAPTER = "policy"
"""The name of the adapter that everybody is served with: what the trainer publishes and samplers ask for."""
ALL_LINEAR = "all-linear"
"""`--lora-target-modules` for every linear layer but the output's."""


def option(
    default: Any,
    help: str,
    *,
    env: tuple[str, ...] = (),
    secret: bool = False,
    needs: Condition | None = None,
    **bounds: float,
) -> Any:
    """A leaf: its default, one line of help, the environment variables it is read from (first one wins), what it needs
    to have an effect, and its bounds: `ge`, `gt`, `le`, `lt`."""
    leaf = {"help": help, "published_env": env, "is_secret": secret, "needs": needs, "bounds": bounds}  # as in leaves.Leaf
    return field(default=default, metadata=leaf)


def flag_of(name: str) -> str:
    """The flag of a leaf, by its name or its path: `rollout.max_staleness` → `--max-staleness`."""
    return "--" + name.rpartition(".")[2].replace("_", "-")


@dataclass(frozen=True)
class ModelConfig:
    """Which model is served and trained."""

    model_path: str = option("", "directory of the policy model", env=("MODEL_PATH", "BASE_MODEL_PATH"))
    served_model_name: str = option("", "name in /v1/models; the directory's name when empty", env=("SERVED_MODEL_NAME",), needs=when.SERVES)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("auto", "weights' type; auto: float32 on CPU, else the checkpoint's")
    device: Literal["auto", "cpu", "cuda"] = option("auto", "where the embedded engine and trainer compute")


@dataclass(frozen=True)
class EngineConfig:
    """The engines that generate."""

    backend: Literal["embedded", "sglang", "scripted"] = option("embedded", "which engine the server or the cluster starts; scripted: no model, for dry runs")
    sglang_python: str = option("", "Python of the environment that has SGLang; this one when empty", env=("SGLANG_PYTHON",), needs=when.SGLANG)
    engine_gpus: str = option("", "GPUs that the server's own engine sees, e.g. 0,1; all there are when empty")
    engine_url: str = option("", "attach to running engines at these URLs (comma-separated) instead of starting any", env=("ENGINE_URL",))
    engine_token: str = option("", "bearer token of engines: of those at engine_url, and of those that are started, for which one is drawn when empty", env=("ENGINE_TOKEN",), secret=True)
    max_running_requests: int = option(64, "sequences that one engine decodes together", ge=1)
    max_queued_requests: int = option(256, "requests that wait for a place; more are refused with 503", ge=0)
    max_context_len: int = option(0, "longest prompt plus reply in tokens; 0 = the model's own limit", ge=0)
    engine_start_timeout_s: float = option(300.0, "how long an engine may take to become ready", gt=0)
    engine_timeout_s: float = option(600.0, "how long one generation may take", gt=0)
    generation_stall_s: float = option(120.0, "how long a generation may go without a new token", gt=0)
    engine_hung_s: float = option(20.0, "how long an engine may give no token and no answer to a health check before its requests are retried elsewhere, or ended where a stream has begun", gt=0)


@dataclass(frozen=True)
class ServerConfig:
    """The OpenAI-compatible server."""

    host: str = option("127.0.0.1", "address to bind; loopback unless told otherwise", env=("OPENCLAW_HOST",), needs=when.SERVES)
    port: int = option(8000, "port to bind; 0 picks a free one", env=("OPENCLAW_PORT",), ge=0, le=65535, needs=when.SERVES)
    api_key: str = option("", "bearer token that clients must send; any is accepted when empty", env=("OPENCLAW_API_KEY",), secret=True)
    admin_key: str = option("", "bearer token of feedback; drawn and kept in admin.key in rl_buffer_dir when empty", env=("OPENCLAW_ADMIN_KEY",), secret=True)
    allowed_hosts: str = option("", "further names by which the server may be addressed, comma-separated, e.g. chat.example.org; * is any. Loopback names and --host always are")
    allowed_origins: str = option("", "web origins whose pages may use the server, comma-separated, e.g. http://localhost:3000; * is any. Other pages are refused")
    enable_rl_intercept: bool = option(False, "capture conversations for training")
    rl_buffer_dir: Path = option(Path("./rl_buffer"), "where captured turns are stored")
    max_concurrent_requests: int = option(512, "requests under way at once; more are refused with 503", ge=1, needs=when.SERVES)
    max_connections: int = option(4096, "open connections; of more, the one that has waited longest without a whole request is closed", ge=16)
    max_body_memory_mb: int = option(256, "MiB of request bodies held at once; the slowest to arrive gives way, else 503", ge=32)
    default_max_tokens: int = option(1024, "length limit of a reply when the client names none", ge=1)
    debug: bool = option(False, "log request and reply shapes, never their text", env=("OPENCLAW_DEBUG",))
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "how much is logged", env=("ROLLOUT_LOG_LEVEL",))


@dataclass(frozen=True)
class JudgeConfig:
    """The judge that scores a turn."""

    judge: Literal["rule", "llm"] = option("rule", "rule: sentiment and correction patterns, no model; llm: ask a model")
    judge_url: str = option("", "whom the llm judge asks: any OpenAI-compatible URL (…/v1), or an engine of our dialect; the policy's own engine when empty", needs=when.ASKED)
    judge_model: str = option("", "name of the model at an OpenAI-compatible judge_url; the first it serves when empty", needs=when.JUDGE_URL)
    judge_api_key: str = option("", "bearer token for an OpenAI-compatible judge_url", env=("JUDGE_API_KEY", "OPENAI_API_KEY"), secret=True)
    judge_retries: int = option(2, "attempts after the first, with backoff, at an OpenAI-compatible judge_url", ge=0, needs=when.JUDGE_URL)
    judge_model_path: str = option("", "model directory of a judge engine to start", env=("JUDGE_MODEL_PATH",))
    prm_model_path: str = option("", "model directory of --custom-rm-path's own reward model; where there is no such plug-in, and no judge is named, of the judge engine", env=("PRM_MODEL_PATH",), needs=when.PRM)
    majority_vote_n: int = option(3, "votes an llm judge casts on a turn", env=("MAJORITY_VOTE_N",), ge=1, needs=when.ASKED)
    majority_vote_threshold: float = option(0.5, "share of the valid votes that must agree", env=("MAJORITY_VOTE_THRESHOLD",), ge=0, le=1, needs=when.ASKED)
    judge_quorum: int = option(0, "valid votes that a score needs; 0 = half of all", ge=0, needs=when.ASKED)
    judge_siblings: bool = option(False, "llm judge: rank the replies to one request (regenerations, the group of a prompt) instead of judging each by itself; costs further calls, each of which shows them all")
    num_judge_workers: int = option(4, "turns judged at once", ge=1)
    judge_temperature: float = option(0.6, "sampling temperature of a vote", ge=0, needs=when.ASKED)
    judge_max_new_tokens: int = option(4096, "length limit of a vote", ge=1, needs=when.ASKED)
    judge_timeout_s: float = option(60.0, "how long one vote may take before it counts as failed", gt=0)


@dataclass(frozen=True)
class TeacherConfig:
    """Hindsight: what a next state says the reply should have heeded, and who scores the reply in that light."""

    hint_source: Literal["auto", "rule", "llm"] = option("auto", "who reads hints from next states; rule: from people's own words, no model; auto: as --judge", needs=when.TAUGHT)
    hint_selection: Literal["shortest", "longest", "token_optimal", "sequence_optimal"] = option("shortest", "which of several hints teaches; optimal: whose likeliest tokens are the policy's too, token by token or in all", needs=when.TAUGHT)
    max_hints: int = option(3, "hints of a turn that are kept to choose from", env=("OPENCLAW_TOPK_MAX_CAND",), ge=1, needs=when.TAUGHT)
    teacher: Literal["policy", "frozen"] = option("policy", "who teaches: the policy as it is served, or the model as it was given, on an engine of its own", needs=when.TAUGHT)
    teacher_url: str = option("", "engine of our dialect that teaches, with the policy's tokenizer", needs=when.TAUGHT)
    teacher_model_path: str = option("", "model directory of a teacher engine to start, with the policy's tokenizer", needs=when.TAUGHT)
    teacher_top_k: int = option(0, "ids a token on which policy and teacher are compared; 0: only the sampled one", env=("OPENCLAW_TOPK_K",), ge=0, needs=when.TAUGHT)
    teacher_support: Literal["teacher", "student", "overlap"] = option("teacher", "whose likeliest ids those are; overlap: both's", needs=when.TAUGHT)
    teacher_timeout_s: float = option(60.0, "how long scoring one reply may take before the turn has no teacher", gt=0, needs=when.TAUGHT)


@dataclass(frozen=True)
class RolloutConfig:
    """How turns are collected into batches."""

    rollout_batch_size: int = option(16, "effective samples that one update consumes", ge=1)
    num_rollouts_per_prompt: int = option(1, "replies to one prompt that are compared with each other", ge=1, needs=when.GROUPS)
    num_rollout: int = option(0, "updates to make; 0 = go on until stopped", ge=0)
    max_staleness: int = option(4, "updates a sample may lag behind before it is dropped", ge=0)
    queue_capacity: int = option(256, "samples that may wait for the trainer", ge=1)
    stall_after_s: float = option(600.0, "how long nothing may be trained, of samples that are made, before the run says why; over prompts it ends", gt=0)
    stall_samples: int = option(32, "samples that must be lost meanwhile", ge=1)
    lease_s: float = option(300.0, "how long a collector may hold a turn before another may take it", gt=0)
    data_path: str = option("", "train offline on these and end: conversation files, a directory of them, or another run's buffer", env=("DATA_PATH",))
    min_turns: int = option(1, "shortest conversation of --data-path that is trained, in turns", ge=1, needs=when.FILES)


@dataclass(frozen=True)
class LossConfig:
    """The objective."""

    advantage_estimator: Literal[
        "reinforce", "grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gspo", "cispo", "ppo", "step_wise"
    ] = option("reinforce", "how rewards become advantages; reinforce: reward less --baseline")
    baseline: Literal["none", "ema", "group"] = option("ema", "what reinforce subtracts from a reward: moving average per source, or group mean", needs=when.REINFORCE)
    baseline_decay: float = option(0.9, "weight of the past in the moving average", ge=0, lt=1, needs=when.MOVING_AVERAGE)
    rewards_normalization: bool = option(True, "grpo, dr_grpo, gspo, cispo, reinforce_plus_plus_baseline: compare rewards within their group; no: take them as they are", needs=when.GROUPED)
    grpo_std_normalization: bool = option(True, "grpo, gspo, cispo: divide by the group's standard deviation", needs=when.DIVIDED)
    normalize_advantages: bool = option(False, "whiten advantages over the batch; reinforce_plus_plus and its baseline form always do")
    gamma: float = option(0.99, "ppo, reinforce_plus_plus: discount from one turn of a session to the next", ge=0, le=1, needs=when.DISCOUNTED)
    lambd: float = option(0.95, "ppo: λ of generalised advantage estimation over a session's turns", ge=0, le=1, needs=when.PPO)
    prm_step_coef: float = option(1.0, "step_wise: weight of a step's own reward beside the outcome's", needs=when.STEP_WISE)
    critic: Literal["own", "policy"] = option("own", "ppo: the value head reads a model of its own, or the policy's hidden states as they are", needs=when.PPO)
    critic_lr: float = option(0.0, "ppo: learning rate of the critic; 0: --lr", ge=0, needs=when.PPO)
    num_critic_only_steps: int = option(0, "ppo: first updates that train the critic alone; the policy stays as it is", ge=0)
    value_clip: float = option(0.2, "ppo: how far a value may move in one batch; 0: as far as it likes", ge=0, needs=when.PPO)
    eps_clip: float = option(0.2, "how far the ratio may fall below 1; 1 leaves it free in cispo", gt=0, le=1)
    eps_clip_high: float = option(0.28, "how far the ratio may rise above 1", gt=0)
    eps_clip_c: float = option(0.0, "dual clip: where the advantage is negative the loss is at most this times its size; above 1, 0: off", ge=0)
    behaviour_correction: Literal["tis", "decoupled", "mis", "icepop", "none"] = option("tis", "what is done about tokens that older weights sampled; none is right only where samples are never stale")
    tis_clip: float = option(2.0, "upper bound of the importance weight trainer/engine", gt=0, needs=when.BOUNDED)
    tis_clip_low: float = option(0.0, "lower bound of the importance weight trainer/engine", ge=0, needs=when.BOUNDED)
    mis_level: Literal["token", "sequence", "geometric"] = option("token", "mis: what has one weight: a token, or a reply by the product or the geometric mean of its tokens", needs=when.MIS)
    mis_mode: Literal["truncate", "clip", "mask"] = option("truncate", "mis: out of bounds a weight is held at the upper, held at either, or rejected", needs=when.MIS)
    mis_veto_threshold: float = option(0.0, "mis: a reply that has a token with a weight below this is left out as a whole, e.g. 1e-4; 0: none", ge=0, lt=1)
    use_opsm: bool = option(False, "leave out bad replies that the policy has moved away from (off-policy sequence masking)")
    opsm_delta: float = option(1e-4, "how far it may have moved: mean log-prob when sampled less now", ge=0, needs=when.OPSM)
    kl_loss_coef: float = option(0.1, "weight of the KL to the reference model in the loss", ge=0)
    kl_coef: float = option(0.0, "weight of the KL to the reference model in the reward, where it is always k1; excludes --kl-loss-coef", ge=0)
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl", "full"] = option("k3", "estimator of the KL in the loss; full: exact, over the vocabulary", needs=when.LOSS_KL)
    use_unbiased_kl: bool = option(True, "weigh the KL of a token in the loss by its importance, so that its gradient is the KL's for stale samples too", needs=when.LOSS_KL)
    entropy_coef: float = option(0.0, "weight of the entropy bonus")
    w_rl: float = option(1.0, "openclaw-combine: weight of the reward's advantage", env=("OPENCLAW_COMBINE_W_RL", "OPENCLAW_TOPK_W_RL"), ge=0, needs=when.COMBINE)
    w_opd: float = option(1.0, "openclaw-opd, openclaw-combine: weight of the teacher's", env=("OPENCLAW_COMBINE_W_OPD", "OPENCLAW_TOPK_W_OPD"), ge=0, needs=when.DISTILLS)
    teacher_divergence: Literal["reverse_kl", "forward_kl", "js"] = option("reverse_kl", "top-k distillation: what is made small between policy and teacher", needs=when.TOP_K)
    teacher_gap_clip: float = option(10.0, "token-level distillation: bound on teacher less policy log-prob of a sampled token; 0: none", ge=0)
    teacher_advantage_clip: float = option(1.0, "top-k selection: bound on teacher less policy log-prob of one id", env=("OPENCLAW_TOPK_ADV_DIFF_CLIP",), gt=0, needs=when.SELECTION)
    calculate_per_token_loss: bool = option(False, "average over all tokens of a step instead of over each trajectory first")
    dr_grpo_length: int = option(1024, "dr_grpo: tokens that every trajectory's sum is divided by", ge=1, needs=when.DR_GRPO)

    @property
    def compares_groups(self) -> bool:
        """Whether an advantage says how a reply compares with others to the same prompt."""
        if self.advantage_estimator == "reinforce":
            return self.baseline == "group"
        if self.advantage_estimator == "rloo":
            return True
        return self.rewards_normalization and self.advantage_estimator in ("grpo", "dr_grpo", "reinforce_plus_plus_baseline", "gspo", "cispo")


@dataclass(frozen=True)
class TrainerConfig:
    """The optimizer and how a batch is cut up."""

    trainer: str = option("torch", "trainer backend: torch, or a plug-in, folder/file.py with a TRAINER in it")
    optimizer: Literal["adamw", "adamw8bit"] = option("adamw", "adamw8bit: moments of 8 bits, 2 bytes a parameter instead of 8; needs torchao, pip install 'openclaw-slime[eight-bit]'")
    lr: float = option(1e-6, "learning rate", env=("LEARNING_RATE",), ge=0)
    lr_warmup_steps: int = option(0, "updates over which the learning rate rises to lr", ge=0)
    weight_decay: float = option(0.01, "AdamW weight decay", ge=0)
    adam_beta1: float = option(0.9, "AdamW β1", ge=0, lt=1)
    adam_beta2: float = option(0.98, "AdamW β2", ge=0, lt=1)
    adam_eps: float = option(1e-8, "AdamW ε", gt=0)
    clip_grad: float = option(1.0, "largest gradient norm", env=("CLIP_GRAD_NORM",), gt=0)
    max_tokens_per_gpu: int = option(8192, "tokens in one micro-batch", ge=1)
    num_steps_per_rollout: int = option(1, "optimizer steps that one batch is split into", ge=1)
    gradient_checkpointing: bool = option(False, "recompute activations to save memory", env=("USE_GRADIENT_CHECKPOINTING",))
    offload_optimizer_state: bool = option(False, "keep the optimizer's state, and step, in CPU memory while computing on a GPU", needs=when.GPU)
    seed: int = option(1234, "seed of everything random in the trainer", ge=0)


@dataclass(frozen=True)
class LoraConfig:
    """Train a low-rank adapter beside the model instead of the model itself."""

    use_lora: bool = option(False, "train and publish a LoRA adapter; the model stays as given", env=("USE_LORA",))
    lora_rank: int = option(8, "rank of the adapter", env=("LORA_RANK",), ge=1)
    lora_alpha: float = option(16.0, "what the adapter's output is multiplied by, times the rank", env=("LORA_ALPHA",), gt=0)
    lora_dropout: float = option(0.0, "share of the adapter's inputs that are dropped in training", env=("LORA_DROPOUT",), ge=0, lt=1)
    lora_target_modules: str = option(ALL_LINEAR, "names of the linear layers to adapt, comma-separated; all-linear: all but the output layer")
    lora_publish: Literal["adapter", "merged"] = option("adapter", "what engines are sent: the adapter alone, or whole weights with it merged in, for engines without adapters")
    adapter_per: Literal["run", "user"] = option("run", "one adapter that everybody is served with, or one for each user")

    @property
    def served_per(self) -> str:
        """Whose adapter answers requests: `run`, `user`, or empty where engines serve the policy's weights whole."""
        return self.adapter_per if self.use_lora and self.lora_publish == "adapter" else ""

    @property
    def shared_adapter(self) -> str:
        """The adapter that every sampler of the run asks, `policy`; empty where engines serve the policy's weights whole, or an adapter is one user's."""
        return SHARED_ADAPTER if self.served_per == "run" else ""

    def adapter_of(self, source: str) -> str:
        """The adapter that answers the requests of a source: everybody's, the source's own, or none."""
        return source if self.served_per == "user" else self.shared_adapter


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints, and how often weights are published."""

    save_dir: Path = option(Path("./checkpoints"), "where checkpoints are written", env=("CKPT_SAVE_DIR",))
    save_interval: int = option(1, "updates between checkpoints: a crash undoes those since the last", ge=1)
    publish_interval: int = option(1, "updates between versions that engines serve, whether or not a checkpoint is written", ge=1)
    keep_checkpoints: int = option(3, "newest checkpoints that are kept", ge=1)
    resume_from_checkpoint: str = option("auto", "auto: the newest in save_dir if any; a checkpoint directory; or none", env=("RESUME_CKPT",))


@dataclass(frozen=True)
class ClusterConfig:
    """Placement of engines and trainer ranks on GPUs and machines."""

    ray_address: str = option("", "Ray cluster to join; a local one is started when empty", env=("RAY_ADDRESS",))
    num_engines: int = option(1, "policy engines", ge=1)
    num_train_ranks: int = option(1, "trainer ranks", ge=1)
    train_gpus: str = option("", "GPUs of the trainer ranks, e.g. 0,1,2,3; none: CPU", env=("TRAIN_GPUS",))
    rollout_gpus: str = option("", "GPUs of the engines, e.g. 4,5,6,7; none: CPU", env=("ROLLOUT_GPUS",))
    judge_gpus: str = option("", "GPUs of the judge's own engine; none: the last of --rollout-gpus that is no trainer's", env=("JUDGE_GPUS",))
    teacher_gpus: str = option("", "GPUs of the teacher's own engine; none: the last of --rollout-gpus that is no trainer's", env=("TEACHER_GPUS",))
    trainer_priority: Literal["idle", "normal"] = option("idle", "what a trainer on CPUs takes of busy cores: what nothing else wants, or a share as any process", env=("TRAINER_PRIORITY",), needs=when.TRAINS_ON_CPU)
    serve: bool = option(True, "serve the policy with the run; no: another program does, or nobody")
    keep_serving: bool = option(False, "go on serving after the last update, until stopped", needs=when.SERVES)
    dashboard: bool = option(False, "start Ray's dashboard, on loopback")


@dataclass(frozen=True)
class MonitorConfig:
    """Metrics, logs and experiment tracking."""

    run_dir: Path = option(Path("./runs/default"), "metrics.jsonl, logs and the resolved configuration go here")
    use_wandb: bool = option(False, "also log to Weights & Biases, offline unless WANDB_MODE says otherwise", env=("USE_WANDB",))
    wandb_project: str = option("openclaw_rl", "Weights & Biases project", env=("WANDB_PROJECT",), needs=when.WANDB)
    run_name: str = option("", "name of the run; openclaw-rl-METHOD when empty", needs=when.WANDB)


@dataclass(frozen=True)
class OutputConfig:
    """Where output directories lie."""

    base_dir: str = option("", "directory that relative output directories lie under; the current one when empty, and a Ray job must be told")


@dataclass(frozen=True)
class PromptConfig:
    """Prompts from a file, in groups that are compared with each other, beside or instead of conversations."""

    prompt_data: str = option("", "prompts as JSON lines, tasks.jsonl or a part of it, tasks.jsonl@[0:500]; with it, --rollout-function-path is slime.rollout.prompts")
    input_key: str = option("input", "key of the prompt: a text, or a list of messages", needs=when.PROMPTS)
    label_key: str = option("", "key of what the reward compares with", needs=when.PROMPTS)
    metadata_key: str = option("metadata", "key of a mapping that generate and reward functions read", needs=when.PROMPTS)
    apply_chat_template: bool = option(False, "a text is one user message; without, it is fed as it stands", needs=when.PROMPTS)
    rollout_shuffle: bool = option(False, "shuffle the prompts in every epoch", needs=when.PROMPTS)
    rollout_seed: int = option(42, "seed of that order", ge=0, needs=when.PROMPTS)
    rollout_temperature: float = option(1.0, "sampling temperature of replies to prompts", gt=0, needs=when.PROMPTS)
    over_sampling_batch_size: int = option(0, "groups of replies under way at once; 0: those of one update", ge=0)
    group_rm: bool = option(False, "--custom-rm-path takes a whole group, (args, samples), and gives a list")
    reward_key: str = option("", "entry that is the score where a reward is a mapping")
    eval_prompt_data: str = option("", "prompts to evaluate on: NAME=tasks.jsonl, several separated by commas")
    eval_interval: int = option(0, "updates between evaluations; 0: none", ge=0)
    n_samples_per_eval_prompt: int = option(1, "replies to each of those prompts", ge=1, needs=when.EVALUATES)


@dataclass(frozen=True)
class PluginConfig:
    """Plug-ins: `folder/file.py`, `folder/file.py:name`, `package.module:name`, `package.module.name`."""

    custom_loss_function_path: str = option("openclaw_rl.custom_loss", "named tensors → loss or (loss, metrics)")
    rollout_function_path: str = option("openclaw_rl.custom_rollout", "async generator of samples, or slime's call style")
    custom_rm_path: str = option("", "reward of one turn, or of one reply to a prompt")
    hook_timeout_s: float = option(600.0, "how long one call of a hook may take", gt=0)
    custom_generate_function_path: str = option("", "prompts: the reply to one of them, (args, sample, sampling_params)")
    rollout_sample_hook_path: str = option("", "prompts: looks at a reply before it is rewarded; several separated by commas")
    dynamic_sampling_filter_path: str = option("", "prompts: whether a group is worth training; what is not is replaced")
    buffer_filter_path: str = option("", "prompts: which of the groups that came back are given out first")
    rollout_sample_filter_path: str = option("", "prompts: marks samples of a batch that do not train")
    rollout_all_samples_process_path: str = option("", "prompts: looks at all groups of a batch, left-out ones too")
    custom_reward_post_process_path: str = option("", "prompts: (raw rewards, advantages) of a batch")
    custom_convert_samples_to_train_data_path: str = option("", "prompts: lists of tokens, masks and log-probs from samples")
    data_source_path: str = option("", "prompts: class that gives out groups, in place of --prompt-data")
    custom_rollout_log_function_path: str = option("", "prompts: logs a batch; true: ours is left out")
    custom_advantage_function_path: str = option("", "advantages of a batch, in place of --advantage-estimator")
    rollout_data_postprocess_path: str = option("", "changes a batch right before it is trained")
    custom_tis_function_path: str = option("", "weights of the policy loss, in place of those of --behaviour-correction decoupled")
    custom_pg_loss_reducer_function_path: str = option("", "how the policy loss of tokens becomes one number, in place of their mean")
    eval_function_path: str = option("", "prompts: evaluates, in slime's call style")
    custom_eval_rollout_log_function_path: str = option("", "prompts: logs an evaluation; true: ours is left out")


@dataclass(frozen=True)
class Config:
    """Everything a training run can be told."""

    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    prompts: PromptConfig = field(default_factory=PromptConfig)
    plugin: PluginConfig = field(default_factory=PluginConfig)
