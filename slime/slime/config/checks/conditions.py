"""When a setting has an effect: conditions that sections.py names beside a setting, and what a run is told of them.

lambd: float = option(0.95, "…", needs=when.PPO)
--lambd 0.9 ─▶ "no effect in this run: --lambd (needs --advantage-estimator ppo)"
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Condition:
    """What a setting needs in order to have an effect.

    Attributes:
        needs: what to write, e.g. `--advantage-estimator ppo`.
        holds: whether a configuration has it.
    """

    needs: str
    holds: Callable[[Any], bool]


def _estimators(*names: str) -> Condition:
    needs = "--advantage-estimator " + ", ".join(names[:-1]) + (" or " if names[1:] else "") + names[-1]
    return Condition(needs, lambda config: config.loss.advantage_estimator in names)


def _corrections(*names: str) -> Condition:
    return Condition(
        "--behaviour-correction " + " or ".join(names), lambda config: config.loss.behaviour_correction in names
    )


def _method(path: str) -> str:
    """Which of our methods' folders the path of a hook lies in; empty where it is somebody's own."""
    ours = ("rl", "opd", "combine")
    return next((m for m in ours if path.startswith(f"openclaw_{m}.") or f"/openclaw-{m}/" in f"/{path}"), "")


def method_name(config: Any) -> str:
    """What published pages call the method that is trained: binary, opd, combine; another one by its folder."""
    path = config.plugin.custom_loss_function_path
    if method := _method(path):
        return {"rl": "binary"}.get(method, method)
    parts = path.partition(":")[0].removesuffix(".py").replace("/", ".").split(".")
    named = [part for part in parts if part]
    return named[-2] if len(named) > 1 else "custom"


def _loss(needs: str, *files: str) -> Condition:
    """One of some losses of ours, e.g. `combine/custom_loss`, or a loss that is not ours: it may read anything."""

    def holds(config: Any) -> bool:
        path = config.plugin.custom_loss_function_path.removesuffix(".py")
        method = _method(path)
        return not method or any(
            file.startswith(method + "/") and path.endswith(file.removeprefix(method)[1:]) for file in files
        )

    return Condition(needs, holds)


def _asks_a_model(config: Any) -> bool:
    judges = config.judge.judge == "llm" and not config.plugin.custom_rm_path
    hints = config.teacher.hint_source
    reads_hints = (config.judge.judge if hints == "auto" else hints) == "llm"
    return judges or (reads_hints and TAUGHT.holds(config))


PPO = _estimators("ppo")
DISCOUNTED = _estimators("ppo", "reinforce_plus_plus")
REINFORCE = _estimators("reinforce")
STEP_WISE = _estimators("step_wise")
DR_GRPO = _estimators("dr_grpo")
DIVIDED = _estimators("grpo", "gspo", "cispo")
GROUPED = _estimators("grpo", "dr_grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
MOVING_AVERAGE = Condition(
    "--advantage-estimator reinforce --baseline ema",
    lambda config: REINFORCE.holds(config) and config.loss.baseline == "ema",
)
MIS = _corrections("mis")
BOUNDED = _corrections("tis", "decoupled", "mis", "icepop")
OPSM = Condition("--use-opsm", lambda config: bool(config.loss.use_opsm))
LOSS_KL = Condition("--kl-loss-coef above 0", lambda config: bool(config.loss.kl_loss_coef))
COMBINE = _loss("the loss of openclaw-combine", "combine/custom_loss", "combine/custom_loss_select")
DISTILLS = _loss(
    "the loss of openclaw-opd or openclaw-combine",
    *("opd/custom_loss", "opd/custom_loss_topk", "combine/custom_loss", "combine/custom_loss_select"),
)
TOP_K = _loss("openclaw-opd/custom_loss_topk.py", "opd/custom_loss_topk")
SELECTION = _loss("openclaw-combine/custom_loss_select.py", "combine/custom_loss_select")
TAUGHT = Condition(
    "the rollout of openclaw-opd or openclaw-combine",
    lambda config: _method(config.plugin.rollout_function_path) != "rl",
)
ASKED = Condition("--judge llm", _asks_a_model)
JUDGE_URL = Condition("--judge-url", lambda config: bool(config.judge.judge_url))
PROMPTS = Condition("--prompt-data", lambda config: bool(config.prompts.prompt_data or config.plugin.data_source_path))
GROUPS = Condition(
    "--prompt-data: people get one reply",
    lambda config: PROMPTS.holds(config) or not _method(config.plugin.rollout_function_path),
)
EVALUATES = Condition("--eval-prompt-data", lambda config: bool(config.prompts.eval_prompt_data))
FILES = Condition("--data-path", lambda config: bool(config.rollout.data_path))
SERVES = Condition("a run that serves, without --data-path", lambda config: bool(config.cluster.serve))
SGLANG = Condition("--backend sglang", lambda config: config.engine.backend == "sglang")
GPU = Condition("--train-gpus", lambda config: bool(config.cluster.train_gpus) and config.model.device != "cpu")
TRAINS_ON_CPU = Condition("a trainer on CPUs", lambda config: not config.cluster.train_gpus)
WANDB = Condition("--use-wandb", lambda config: bool(config.monitor.use_wandb))
PRM = Condition(
    "--custom-rm-path, or no other judge",
    lambda config: bool(config.plugin.custom_rm_path) or config.judge.judge_model_path == config.judge.prm_model_path,
)
