"""The configuration tree: one frozen dataclass per concern, each leaf declared once with its help.

Flags, environment variables, YAML keys and `docs/configuration.md` are generated from what stands
here (`max_staleness` is `--max-staleness`, YAML `rollout: {max_staleness: 4}`). A component is handed
its own section, never the whole tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


def option(default: Any, help: str, *, env: tuple[str, ...] = (), secret: bool = False, **bounds: float) -> Any:
    """A leaf: its default, one line of help, the environment variables it is read from (first one wins), and its
    bounds: `ge`, `gt`, `le`, `lt`."""
    return field(default=default, metadata={"help": help, "env": env, "secret": secret, "bounds": bounds})


@dataclass(frozen=True)
class ModelConfig:
    """Which model is served and trained."""

    model_path: str = option("", "directory of the policy model", env=("MODEL_PATH", "BASE_MODEL_PATH"))
    served_model_name: str = option("", "name in /v1/models; the directory's name when empty", env=("SERVED_MODEL_NAME",))
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("auto", "weights' type; auto: float32 on CPU, else the checkpoint's")
    device: Literal["auto", "cpu", "cuda"] = option("auto", "where the embedded engine and trainer compute")


@dataclass(frozen=True)
class EngineConfig:
    """The engines that generate."""

    backend: Literal["embedded", "sglang"] = option("embedded", "which engine the server or the cluster starts")
    sglang_python: str = option("", "Python of the environment that has SGLang; this one when empty", env=("SGLANG_PYTHON",))
    engine_url: str = option("", "attach to running engines at these URLs (comma-separated) instead of starting any", env=("ENGINE_URL",))
    max_running_requests: int = option(64, "sequences that one engine decodes together", ge=1)
    max_queued_requests: int = option(256, "requests that wait for a place; more are refused with 503", ge=0)
    max_context_len: int = option(0, "longest prompt plus reply in tokens; 0 = the model's own limit", ge=0)
    engine_start_timeout_s: float = option(300.0, "how long an engine may take to become ready", gt=0)
    engine_timeout_s: float = option(600.0, "how long one generation may take", gt=0)
    generation_stall_s: float = option(120.0, "how long a generation may go without a new token", gt=0)


@dataclass(frozen=True)
class ServerConfig:
    """The OpenAI-compatible server."""

    host: str = option("127.0.0.1", "address to bind; loopback unless told otherwise", env=("OPENCLAW_HOST",))
    port: int = option(8000, "port to bind; 0 picks a free one", env=("OPENCLAW_PORT",), ge=0, le=65535)
    api_key: str = option("", "bearer token that clients must send; any is accepted when empty", env=("OPENCLAW_API_KEY",), secret=True)
    enable_rl_intercept: bool = option(False, "capture conversations for training")
    rl_buffer_dir: Path = option(Path("./rl_buffer"), "where captured turns are stored")
    max_concurrent_requests: int = option(512, "requests under way at once; more are refused with 503", ge=1)
    default_max_tokens: int = option(1024, "length limit of a reply when the client names none", ge=1)
    debug: bool = option(False, "log request and reply shapes, never their text", env=("OPENCLAW_DEBUG",))
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "how much is logged", env=("ROLLOUT_LOG_LEVEL",))


@dataclass(frozen=True)
class JudgeConfig:
    """Who says how good a turn was."""

    judge: Literal["rule", "llm"] = option("rule", "rule: sentiment and correction patterns, no model; llm: ask a model")
    judge_url: str = option("", "whom the llm judge asks: any OpenAI-compatible URL (…/v1), or an engine of our dialect; the policy's own engine when empty")
    judge_model: str = option("", "name of the model at an OpenAI-compatible judge_url; the first it serves when empty")
    judge_api_key: str = option("", "bearer token for an OpenAI-compatible judge_url", env=("JUDGE_API_KEY", "OPENAI_API_KEY"), secret=True)
    judge_retries: int = option(2, "attempts after the first, with backoff, at an OpenAI-compatible judge_url", ge=0)
    judge_model_path: str = option("", "model directory of a judge engine to start", env=("JUDGE_MODEL_PATH", "PRM_MODEL_PATH"))
    majority_vote_n: int = option(3, "votes an llm judge casts on a turn", env=("MAJORITY_VOTE_N",), ge=1)
    majority_vote_threshold: float = option(0.5, "share of the valid votes that must agree", env=("MAJORITY_VOTE_THRESHOLD",), ge=0, le=1)
    judge_quorum: int = option(0, "valid votes that a score needs; 0 = half of all", ge=0)
    num_judge_workers: int = option(4, "turns judged at once", ge=1)
    judge_temperature: float = option(0.6, "sampling temperature of a vote", ge=0)
    judge_max_new_tokens: int = option(4096, "length limit of a vote", ge=1)
    judge_timeout_s: float = option(60.0, "how long one vote may take before it counts as failed", gt=0)


@dataclass(frozen=True)
class RolloutConfig:
    """How turns become batches."""

    rollout_batch_size: int = option(16, "effective samples that one update consumes", ge=1)
    num_rollouts_per_prompt: int = option(1, "replies to one prompt that are compared with each other", ge=1)
    num_rollout: int = option(0, "updates to make; 0 = go on until stopped", ge=0)
    max_staleness: int = option(4, "updates a sample may lag behind before it is dropped", ge=0)
    queue_capacity: int = option(256, "samples that may wait for the trainer", ge=1)
    lease_s: float = option(300.0, "how long a collector may hold a turn before another may take it", gt=0)


@dataclass(frozen=True)
class LossConfig:
    """The objective."""

    eps_clip: float = option(0.2, "how far the ratio may fall below 1", gt=0, lt=1)
    eps_clip_high: float = option(0.28, "how far the ratio may rise above 1", gt=0)
    kl_loss_coef: float = option(0.1, "weight of the KL to the reference model", ge=0)
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl", "full"] = option("k3", "estimator of that KL; full: exact, over the vocabulary")
    entropy_coef: float = option(0.0, "weight of the entropy bonus")
    tis_clip: float = option(2.0, "upper bound of the importance weight trainer/engine", gt=0)
    tis_clip_low: float = option(0.0, "lower bound of the importance weight trainer/engine", ge=0)
    baseline: Literal["none", "ema", "group"] = option("ema", "what is subtracted from a reward: moving average per source, or group mean")
    baseline_decay: float = option(0.9, "weight of the past in the moving average", ge=0, lt=1)


@dataclass(frozen=True)
class TrainerConfig:
    """The optimizer and how a batch is cut up."""

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
    seed: int = option(1234, "seed of everything random in the trainer", ge=0)


@dataclass(frozen=True)
class LoraConfig:
    """Train a low-rank adapter beside the model instead of the model itself."""

    use_lora: bool = option(False, "train and publish a LoRA adapter; the model stays as given", env=("USE_LORA",))
    lora_rank: int = option(8, "rank of the adapter", env=("LORA_RANK",), ge=1)
    lora_alpha: float = option(16.0, "what the adapter's output is multiplied by, times the rank", env=("LORA_ALPHA",), gt=0)
    lora_dropout: float = option(0.0, "share of the adapter's inputs that are dropped in training", env=("LORA_DROPOUT",), ge=0, lt=1)
    lora_target_modules: str = option("all-linear", "names of the linear layers to adapt, comma-separated; all-linear: all but the output layer")


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept on disk."""

    save_dir: Path = option(Path("./checkpoints"), "where checkpoints are written", env=("CKPT_SAVE_DIR",))
    save_interval: int = option(1, "updates between checkpoints", ge=1)
    keep_checkpoints: int = option(3, "newest checkpoints that are kept", ge=1)
    resume_from_checkpoint: str = option("auto", "auto: the newest in save_dir if any; a checkpoint directory; or none", env=("RESUME_CKPT",))


@dataclass(frozen=True)
class ClusterConfig:
    """Where things run."""

    ray_address: str = option("", "Ray cluster to join; a local one is started when empty", env=("RAY_ADDRESS",))
    num_engines: int = option(1, "policy engines", ge=1)
    num_train_ranks: int = option(1, "trainer ranks", ge=1)
    train_gpus: str = option("", "GPUs of the trainer ranks, e.g. 0,1,2,3; none: CPU", env=("TRAIN_GPUS",))
    rollout_gpus: str = option("", "GPUs of the engines, e.g. 4,5,6,7; none: CPU", env=("ROLLOUT_GPUS",))
    keep_serving: bool = option(False, "go on serving after the last update, until stopped")
    dashboard: bool = option(False, "start Ray's dashboard, on loopback")


@dataclass(frozen=True)
class MonitorConfig:
    """What is written down about the run."""

    run_dir: Path = option(Path("./runs/default"), "metrics.jsonl, logs and the resolved configuration go here")
    use_wandb: bool = option(False, "also log to Weights & Biases, offline unless WANDB_MODE says otherwise", env=("USE_WANDB",))
    wandb_project: str = option("openclaw_rl", "Weights & Biases project", env=("WANDB_PROJECT",))
    run_name: str = option("openclaw-rl", "name of the run")


@dataclass(frozen=True)
class PluginConfig:
    """Code of yours that replaces ours: `folder/file.py`, `folder/file.py:name`, `package.module:name`, `package.module.name`."""

    custom_loss_function_path: str = option("openclaw_rl.custom_loss", "named tensors → loss or (loss, metrics)")
    rollout_function_path: str = option("openclaw_rl.custom_rollout", "async generator of samples, or slime's call style")
    custom_generate_function_path: str = option("", "one generation")
    custom_rm_path: str = option("", "reward of one turn")


@dataclass(frozen=True)
class Config:
    """Everything a training run can be told."""

    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    plugin: PluginConfig = field(default_factory=PluginConfig)
