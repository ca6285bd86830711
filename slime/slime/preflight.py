"""`python -m slime.preflight FLAG …`: checks a run before anything of it starts.

    settings ─▶ files and packages (no torch: a fraction of a second) ─▶ plug-ins loaded, hooks matched ─▶ Plan

`slime/train.py` begins with it, and launch.sh runs it before it submits a job. Settings that exclude each other are
listed in `config/checks/contradictions.py`; the order of the checks is here.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slime.cluster.placement import Placement, on_cpu, own_teacher, place
from slime.config.checks.contradictions import check_loss
from slime.config.checks.startup import check_startup, warnings
from slime.config.gpus import check_gpus
from slime.config.loader import load_config
from slime.config.model_dir import refuse_float16
from slime.config.sections import Config, flag_of
from slime.engines.backends import check_engine
from slime.engines.serving import read_serving
from slime.errors import ConfigError, OpenClawError

if TYPE_CHECKING:
    from slime.compat.prompts.plan import RolloutPlan

log = logging.getLogger(__name__)

PROG = "python slime/train.py"


@dataclass(frozen=True)
class Plan:
    """What the configuration comes to, checked.

    Attributes:
        placement: which process sees which GPU.
        rollout: loaded.
        asks_model: whether verdicts or hints are a language model's.
        needs_teacher: whether the rollout asks for a teacher or for hints.
    """

    placement: Placement
    rollout: RolloutPlan
    asks_model: bool
    needs_teacher: bool


def check(config: Config) -> Plan:
    """Find what is wrong with the settings before anything is started.

    Raises:
        ConfigError: one line that names the setting and the way out.
    """
    check_startup(config)
    check_engine(config.engine)
    for warning in warnings(config):
        log.warning("%s", warning)
    _check_gpus(config)
    _check_server_beside(config)
    rollout = _check_plugins(config)
    from slime.rollout.hindsight import hint_reader  # brings torch, as the plug-ins did

    asked = rollout.call.asks_for
    asks_model = rollout.reward is None and config.judge.judge == "llm"
    asks_model |= "hint_source" in asked and hint_reader(config) == "llm"
    needs_teacher = bool(asked & {"teacher", "hint_source"})
    placement = place(
        on_cpu(config).cluster,
        has_judge=bool(config.judge.judge_model_path and not config.judge.judge_url) and asks_model,
        has_teacher=bool(own_teacher(config)) and needs_teacher,
    )
    return Plan(placement, rollout, asks_model, needs_teacher)


def _check_gpus(config: Config) -> None:
    """GPUs that are named are there; on the CPU their numbers only count, which is said."""
    flags = ("train_gpus", "rollout_gpus", "judge_gpus", "teacher_gpus")
    asked = {flag_of(name): getattr(config.cluster, name) for name in flags}
    if config.model.device == "cpu":
        if any(asked.values()):
            counted = f"{config.cluster.num_train_ranks} trainer ranks, {config.cluster.num_engines} engines"
            log.warning("--device cpu: no GPU is used, their numbers only count: %s", counted)
        return
    check_gpus(asked, os.environ)
    has_engines = config.cluster.rollout_gpus or config.engine.engine_url
    if config.model.device == "cuda" and not (config.cluster.train_gpus and has_engines):
        raise ConfigError("--device cuda: say which GPUs, --train-gpus and --rollout-gpus; without them it is the CPU")


def _check_server_beside(config: Config) -> None:
    """A run that leaves serving to another program trains what that program asks: the adapter, or the model itself."""
    is_beside = config.engine.engine_url and not (config.cluster.serve or config.prompts.prompt_data)
    serving = read_serving(config.server.rl_buffer_dir) if is_beside else None
    if serving is None or serving.adapter_per == config.lora.served_per:
        return
    its = f"--use-lora --adapter-per {serving.adapter_per}" if serving.adapter_per else "no adapter"
    raise ConfigError(
        f"the server at {serving.api_endpoint} runs with {its}, and would never ask for what this run trains: "
        "give both the same --use-lora and --adapter-per"
    )


def _check_plugins(config: Config) -> RolloutPlan:
    """Load whatever the run will call. This imports torch, so what can be said without it has been said."""
    from slime.compat.install import install
    from slime.compat.prompts.plan import plan_rollout
    from slime.plugins.losses import load_loss
    from slime.tools.offline import check_conversations
    from slime.trainers.build import check_trainer
    from slime.trainers.policy_hooks import load_policy_loss_hooks

    install()
    plan = plan_rollout(config)
    if config.rollout.data_path:
        check_conversations(Path(config.rollout.data_path))
    loss_fn = load_loss(config.plugin.custom_loss_function_path)  # the ranks load both again, in their own processes
    check_loss(config, loss_fn.call.place, loss_fn.asks_for)
    load_policy_loss_hooks(config.plugin)
    check_trainer(config)
    refuse_float16(config.model.dtype, config.model.model_path, on_gpu=bool(config.cluster.train_gpus))
    return plan


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 it can start, 2 a mistake in the settings, told in one line as the run would tell it."""
    config = load_config(argv, prog=PROG)
    try:
        check(config)
    except OpenClawError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a plug-in may have started threads; and torch takes its time to unload
