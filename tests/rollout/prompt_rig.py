"""A rollout over prompts on a scripted engine: settings in, groups out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from scripted_engine import ScriptedEngine
from slime.chat import ChatFormat
from slime.compat.prompts.plan import RolloutPlan, plan_rollout
from slime.compat.prompts.rollout import PromptRun
from slime.config.checks.contradictions import RolloutKind
from slime.config.loader import resolve
from slime.config.sections import Config
from slime.judging.llm.chat_model import ChatModel
from slime.judging.rules.judge import RuleJudge
from slime.progress import Progress
from slime.protocols import Engine
from slime.rollout.context import RolloutContext
from slime.store import Store
from slime.types import SampleGroup


@dataclass
class Rig:
    """One folder with a model's tokenizer, prompts and plug-ins.

    Attributes:
        progress: of a trainer that is not there.
        model: compares the replies to a prompt, with `--judge-siblings`.
    """

    folder: Path
    model_dir: Path
    replies: Sequence[str] = ("yes", "no")
    progress: Progress = field(default_factory=Progress)
    engines: list[Engine] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    model: ChatModel | None = None

    @property
    def chat(self) -> ChatFormat:
        return ChatFormat.load(self.model_dir)

    def write_prompts(self, number: int, **more: Any) -> Path:
        file = self.folder / "tasks.jsonl"
        rows = [{"input": f"question {i}", "label": str(i), **more} for i in range(number)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return file

    def plugin(self, name: str, source: str) -> str:
        folder = self.folder / "my-method"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(textwrap.dedent(source), encoding="utf-8")
        return str(folder / name)

    def config(self, *flags: str) -> Config:
        paths = ["--model-path", str(self.model_dir), "--save-dir", str(self.folder / "save")]
        return resolve([*paths, *flags], {}).config

    def start(self, config: Config, plan: RolloutPlan | None = None) -> PromptRun:
        if not self.engines:
            self.engines = [ScriptedEngine(self.replies, model_dir=self.model_dir)]
        plan = plan or plan_rollout(config)
        return plan.prompts(self.context(config, self.progress), config)

    def context(self, config: Config, progress: Progress) -> RolloutContext:
        """Of a run that reads no store."""
        store = cast(Store, None)
        sections = config.rollout, config.judge, config.teacher
        return RolloutContext(store, RuleJudge(), "test", progress, *sections, self.engines, self.urls, self.model)

    async def groups(self, number: int, *flags: str) -> tuple[list[SampleGroup], PromptRun]:
        """The first groups of a run with these flags."""
        config = self.config(*flags)
        plan = plan_rollout(config)
        run = self.start(config, plan)
        stream = run.batches_of(plan.call) if plan.kind is RolloutKind.BATCHES else run.stream()
        taken: list[SampleGroup] = []
        async with asyncio.timeout(20), contextlib.aclosing(stream) as groups:
            async for group in groups:
                taken.append(group)
                if len(taken) == number:
                    break
        return taken, run
