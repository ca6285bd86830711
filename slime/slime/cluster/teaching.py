"""Who teaches, as the configuration says.

--teacher policy         the engines that serve, whatever they serve now    no further engine
--teacher frozen         the model as it was given                          an engine of its own; with an adapter,
                                                                            the base that is served beneath it
--teacher-model-path     another model with the policy's tokenizer          an engine of its own
--teacher-url            an engine that somebody else runs
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from slime.chat import ChatFormat
from slime.cluster.fleet import Fleet
from slime.cluster.placement import own_teacher
from slime.config import Config
from slime.config.model_dir import check_model_dir
from slime.engines.client import HttpEngine
from slime.errors import ConfigError
from slime.judging.hindsight.teacher import Teacher
from slime.rollout.hindsight import adapter_of


@contextlib.asynccontextmanager
async def teaching(config: Config, fleet: Fleet, gpus: str, log_dir: Path) -> AsyncIterator[Teacher]:
    """The teacher of a run; an engine that is started for it ends with the context.

    Args:
        gpus: what that engine may see.

    Raises:
        ConfigError: a teacher of another tokenizer.
    """
    chosen, policy = config.teacher, fleet.clients[0]
    chat, whose = ChatFormat.load(config.model.model_path), adapter_of(config.lora)
    model_path = own_teacher(config)
    if chosen.teacher_url:
        async with HttpEngine(chosen.teacher_url, token=config.engine.engine_token) as engine:
            yield Teacher(engine, policy, chat, chosen, adapter_of=whose)
    elif model_path:
        check_model_dir(model_path)
        if not ChatFormat.load(model_path).has_vocabulary_of(chat):
            raise ConfigError(f"--teacher-model-path {model_path}: a teacher needs the policy's tokenizer")
        bench = Fleet(replace(config.model, model_path=model_path), config.engine, (gpus,), log_dir / "teacher")
        try:
            await bench.start()
            yield Teacher(bench.clients[0], policy, chat, chosen, adapter_of=whose)
        finally:
            await bench.stop()
    else:
        is_policy = chosen.teacher == "policy"
        yield Teacher(policy, policy, chat, chosen, adapter_of=whose, is_policy=is_policy)
