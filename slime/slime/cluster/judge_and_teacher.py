"""The judge and the teacher of a run, and the engines of their own that they may need.

--custom-rm-path          a reward plug-in                             no model
--judge rule              the rules                                    no model
--judge llm               the policy, whatever it serves now           the engines that serve
--judge-model-path DIR    a frozen model                               an engine of its own
--judge-url URL           a model behind a URL                         an OpenAI-compatible server, or an engine

--teacher policy          the policy, whatever it serves now           the engines that serve
--teacher frozen          the model as it was given                    an engine of its own; with an adapter, the base
                                                                       that is served beneath it
--teacher-model-path DIR  another model with the policy's tokenizer    an engine of its own
--teacher-url URL         an engine that is there already
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from slime.chat import ChatFormat
from slime.cluster.fleet import Fleet
from slime.cluster.placement import own_teacher
from slime.config.sections import Config
from slime.engines.client import HttpEngine
from slime.errors import ConfigError
from slime.judging.hindsight.teacher import Teacher
from slime.judging.llm.chat_model import ChatModel, EngineModel
from slime.judging.llm.judge import LlmJudge
from slime.judging.llm.relative import RelativeJudge, SiblingJudge
from slime.judging.plugin import PluginJudge
from slime.judging.rules.judge import RuleJudge
from slime.plugins.rewards import RewardHook
from slime.protocols import Judge
from slime.rollout.judge_endpoint import judge_model_at
from slime.store import Store


def judge_of(config: Config, reward: RewardHook | None, model: ChatModel | None, store: Store) -> Judge:
    """The judge that was asked for.

    Args:
        reward: of `--custom-rm-path`, which comes first.
        model: there where a language model judges.
    """
    if reward is not None:
        return PluginJudge(reward, timeout_s=config.judge.judge_timeout_s)
    if config.judge.judge != "llm":
        return RuleJudge()
    assert model is not None  # it was asked for
    alone = LlmJudge(model, config.judge)
    return SiblingJudge(alone, RelativeJudge(model, config.judge), store) if config.judge.judge_siblings else alone


@contextlib.asynccontextmanager
async def judge_model(config: Config, fleet: Fleet, gpus: str, log_dir: Path) -> AsyncIterator[ChatModel]:
    """The model that judges and reads hints, for as long as it is needed.

    Args:
        gpus: what an engine of its own may see.
    """
    model_path = config.judge.judge_model_path
    if config.judge.judge_url:
        async with judge_model_at(config.judge, model_path or config.model.model_path) as there:
            yield there
    elif model_path:
        async with _own_engine(config, model_path, gpus, log_dir / "judge") as engine:
            yield EngineModel(engine, ChatFormat.load(model_path).render, Path(model_path).name)
    else:
        yield EngineModel(fleet.clients[0], ChatFormat.load(config.model.model_path).render)


@contextlib.asynccontextmanager
async def teaching(config: Config, fleet: Fleet, gpus: str, log_dir: Path) -> AsyncIterator[Teacher]:
    """The teacher, for as long as it is needed.

    Args:
        gpus: what an engine of its own may see.

    Raises:
        ConfigError: a teacher of another tokenizer.
    """
    policy, model_path = fleet.clients[0], own_teacher(config)
    chat = ChatFormat.load(config.model.model_path)
    async with contextlib.AsyncExitStack() as stack:
        engine = policy
        if config.teacher.teacher_url:
            there = HttpEngine(config.teacher.teacher_url, token=config.engine.engine_token)
            engine = await stack.enter_async_context(there)
        elif model_path:
            if not ChatFormat.load(model_path).has_vocabulary_of(chat):
                raise ConfigError(f"--teacher-model-path {model_path}: a teacher needs the policy's tokenizer")
            engine = await stack.enter_async_context(_own_engine(config, model_path, gpus, log_dir / "teacher"))
        is_policy = engine is policy and config.teacher.teacher == "policy"
        yield Teacher(engine, policy, chat, config.teacher, adapter_of=config.lora.adapter_of, is_policy=is_policy)


@contextlib.asynccontextmanager
async def _own_engine(config: Config, model_path: str, gpus: str, log_dir: Path) -> AsyncIterator[HttpEngine]:
    """An engine that serves this model as it is."""
    fleet = Fleet(replace(config.model, model_path=model_path), config.engine, (gpus,), log_dir)
    try:
        await fleet.start()
        yield fleet.clients[0]
    finally:
        await fleet.stop()
