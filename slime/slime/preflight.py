"""`python -m slime.preflight FLAG …`: everything that can be known of a run before it starts, and nothing started.

    settings ─▶ files and packages (no torch: a fraction of a second) ─▶ plug-ins loaded, hooks matched ─▶ Plan

`slime/train.py` begins with it, and launch.sh asks it before it submits anything.
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
from slime.config import Config, LossConfig
from slime.config.gpus import check_gpus
from slime.config.loader import load_config
from slime.config.model_dir import refuse_float16
from slime.config.startup import check_startup, warnings
from slime.engines.backends import check_engine
from slime.engines.serving import read_serving
from slime.errors import ConfigError, OpenClawError

if TYPE_CHECKING:
    from slime.compat.prompts.plan import RolloutPlan
    from slime.plugins.calling import NamedCall
    from slime.plugins.rewards import RewardHook

log = logging.getLogger(__name__)

PROG = "python slime/train.py"


@dataclass(frozen=True)
class Plan:
    """What the configuration comes to, checked: the plug-ins that were loaded and who sees which GPU."""

    placement: Placement
    sampling: RolloutPlan

    @property
    def rollout(self) -> NamedCall:
        return self.sampling.call

    @property
    def reward(self) -> RewardHook | None:
        return self.sampling.reward


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
    sampling = _check_plugins(config)
    placement = place(
        on_cpu(config).cluster,
        has_judge=bool(config.judge.judge_model_path and not config.judge.judge_url) and asks_a_model(config, sampling),
        has_teacher=bool(own_teacher(config)) and bool(sampling.call.asks_for & {"teacher", "hint_source"}),
    )
    return Plan(placement=placement, sampling=sampling)


def asks_a_model(config: Config, sampling: RolloutPlan) -> bool:
    """Whether verdicts or hints are a language model's."""
    from slime.rollout.hindsight import hint_reader

    is_judge = sampling.reward is None and config.judge.judge == "llm"
    return is_judge or ("hint_source" in sampling.call.asks_for and hint_reader(config) == "llm")


def _check_gpus(config: Config) -> None:
    """GPUs that are named are there; on the CPU their numbers only count, which is said."""
    flags = ("train_gpus", "rollout_gpus", "judge_gpus", "teacher_gpus")
    asked = {f"--{name.replace('_', '-')}": getattr(config.cluster, name) for name in flags}
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
    from slime.compat.prompts.plan import plan_rollout
    from slime.plugins.losses import load_loss
    from slime.plugins.policy_loss import load_policy_loss_hooks
    from slime.tools.offline import check_conversations
    from slime.trainers.build import check_trainer

    plugin = config.plugin
    sampling = plan_rollout(config)
    is_live = sampling.loop == "live"
    if not is_live and config.lora.use_lora and config.lora.adapter_per == "user":
        raise ConfigError("--adapter-per user: prompts are no user's; with --prompt-data leave it out")
    if is_live and config.loss.compares_groups and not sampling.gives_groups:
        raise ConfigError(
            f"{_comparing(config.loss)} compares replies to one prompt, and people get only one: "
            "use --advantage-estimator reinforce --baseline ema"
        )
    if config.rollout.data_path:
        check_conversations(Path(config.rollout.data_path))
        if config.cluster.serve:
            raise ConfigError("--serve and --data-path: a run on recorded conversations serves nobody; leave out one")
    loss_fn = load_loss(plugin.custom_loss_function_path)  # the ranks load it again, in their own processes
    loss_fn.check(config.loss)
    load_policy_loss_hooks(plugin, config.loss, loss_fn)
    if "teacher_topk_ids" in loss_fn.asks_for and not config.teacher.teacher_top_k:
        raise ConfigError(
            f"--custom-loss-function-path {plugin.custom_loss_function_path} compares k ids a token: "
            "give --teacher-top-k, e.g. 50"
        )
    check_trainer(config)
    refuse_float16(config.model.dtype, config.model.model_path, on_gpu=bool(config.cluster.train_gpus))
    return sampling


def _comparing(loss: LossConfig) -> str:
    """The flag that asks for groups."""
    if loss.advantage_estimator == "reinforce":
        return f"--baseline {loss.baseline}"
    return f"--advantage-estimator {loss.advantage_estimator}"


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
