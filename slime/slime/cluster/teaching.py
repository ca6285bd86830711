"""Who teaches, as the configuration says.

--teacher policy         the engines that serve, whatever they serve now    no further engine
--teacher frozen         the model as it was given                          an engine of its own; with an adapter,
                                                                            the base that is served beneath it
--teacher-model-path     another model with the policy's tokenizer          an engine of its own
--teacher-url            an engine that somebody else runs
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

from slime.chat import ChatFormat
from slime.cluster.fleet import Fleet
from slime.config import Config
from slime.config.model_dir import check_model_dir
from slime.config.sections import LoraConfig
from slime.engines.client import HttpEngine
from slime.errors import ConfigError
from slime.judging.teacher import Teacher
from slime.trainers.torch.policy import ADAPTER_NAME
from slime.types import Turn


@contextlib.asynccontextmanager
async def teaching(config: Config, fleet: Fleet, log_dir: Path) -> AsyncIterator[Teacher]:
    """The teacher of a run; an engine that is started for it ends with the context.

    Raises:
        ConfigError: a teacher of another tokenizer.
    """
    chosen, policy = config.teacher, fleet.clients[0]
    chat, adapter_of = ChatFormat.load(config.model.model_path), _adapter_of(config.lora)
    has_base = config.lora.use_lora and config.lora.lora_publish == "adapter"
    is_frozen = chosen.teacher == "frozen" and not has_base
    model_path = chosen.teacher_model_path or (config.model.model_path if is_frozen else "")
    if chosen.teacher_url:
        async with HttpEngine(chosen.teacher_url) as engine:
            yield Teacher(engine, policy, chat, chosen, adapter_of=adapter_of)
    elif model_path:
        check_model_dir(model_path)
        if not ChatFormat.load(model_path).has_vocabulary_of(chat):
            raise ConfigError(f"--teacher-model-path {model_path}: a teacher needs the policy's tokenizer")
        bench = Fleet(replace(config.model, model_path=model_path), config.engine, ("",), log_dir / "teacher")
        try:
            await bench.start()
            yield Teacher(bench.clients[0], policy, chat, chosen, adapter_of=adapter_of)
        finally:
            await bench.stop()
    else:
        is_policy = chosen.teacher == "policy"
        yield Teacher(policy, policy, chat, chosen, adapter_of=adapter_of, is_policy=is_policy)


def _adapter_of(lora: LoraConfig) -> Callable[[Turn], str]:
    """Whose adapter a turn was answered with, as `openclaw.adapters` routes requests."""
    if not lora.use_lora or lora.lora_publish == "merged":
        return lambda turn: ""
    if lora.adapter_per == "run":
        return lambda turn: ADAPTER_NAME
    return lambda turn: str(turn.details.get("source", ""))
