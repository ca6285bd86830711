"""What a rollout works with: `async def generate_rollout(ctx)` is given a `RolloutContext`.

What takes an engine of its own is asked for by its name, beside `ctx`, so that a run knows before it starts whether to
place one: `teacher`, `hint_source`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slime.config.sections import Config, JudgeConfig, RolloutConfig, TeacherConfig
from slime.judging.llm.chat_model import ChatModel
from slime.progress import Progress
from slime.protocols import Engine, Judge, Rollout
from slime.store import Store
from slime.types import SampleGroup


@dataclass(frozen=True)
class RolloutContext:
    """The parts of a run that a rollout may use.

    Attributes:
        store: the captured turns.
        judge: scores a turn by its next state.
        owner: the name that leases are held under; a run that is started again frees what it held before.
        progress: how far the run is.
        rollout, judging, teaching: its sections of the configuration.
        engines: serve the policy; asked directly they bypass the server, and nothing is captured.
        engine_urls: their addresses, for code that speaks HTTP itself; empty for engines in this process.
        model: the language model that judges; None where none was asked for.
    """

    store: Store
    judge: Judge
    owner: str
    progress: Progress
    rollout: RolloutConfig
    judging: JudgeConfig
    teaching: TeacherConfig = TeacherConfig()
    engines: Sequence[Engine] = ()
    engine_urls: Sequence[str] = ()
    model: ChatModel | None = None


def offered(ctx: RolloutContext, config: Config, **named: Any) -> dict[str, Any]:
    """What a rollout function may ask for: the context, its parts by their names, and the configuration.

    Args:
        named: what else there is, e.g. `teacher`.
    """
    parts = {"store": ctx.store, "judge": ctx.judge, "owner": ctx.owner, "policy_version": ctx.progress}
    return {"ctx": ctx, **parts, "config": config, **named}


@dataclass(frozen=True)
class StreamRollout(Rollout):
    """A rollout that is a stream of samples and nothing else.

    Attributes:
        open_stream: called once; the stream is closed when the run ends.
    """

    open_stream: Callable[[], AsyncGenerator[SampleGroup]]

    def stream(self) -> AsyncGenerator[SampleGroup]:
        return self.open_stream()
