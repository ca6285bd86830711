"""The judge of a run, and the language model that it asks.

--custom-rm-path          a reward plug-in                       no model
--judge llm --judge-url   a model behind a URL                   an OpenAI-compatible server, or an engine
--judge-model-path DIR    a frozen model                         an engine of its own
--judge llm               the policy, whatever it serves now     the engines that serve
--judge rule              the rules                              no model
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from slime.cluster.fleet import Fleet
from slime.config import Config
from slime.config.model_dir import check_model_dir
from slime.judging.llm.chat_model import ChatModel, EngineModel
from slime.judging.llm.judge import LlmJudge
from slime.judging.llm.relative import RelativeJudge, SiblingJudge
from slime.judging.plugin import PluginJudge
from slime.judging.rules.judge import RuleJudge
from slime.plugins.rewards import RewardHook
from slime.protocols import Judge
from slime.rollout.judge_endpoint import judge_model_at, renderer
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
    if config.judge.judge_url:
        tokenizer_dir = config.judge.judge_model_path or config.model.model_path
        async with judge_model_at(config.judge, tokenizer_dir) as there:
            yield there
    elif config.judge.judge_model_path:
        check_model_dir(config.judge.judge_model_path)
        model = replace(config.model, model_path=config.judge.judge_model_path)
        frozen = Fleet(model, config.engine, (gpus,), log_dir / "judge")
        try:
            await frozen.start()
            yield EngineModel(frozen.clients[0], renderer(model.model_path), Path(model.model_path).name)
        finally:
            await frozen.stop()
    else:
        yield EngineModel(fleet.clients[0], renderer(config.model.model_path))
