"""One group: every sample of a prompt generated, looked at and rewarded.

    Group ─▶ generate (ours, or --custom-generate-function-path) ─▶ sample hooks ─▶ reward ─▶ Group
                 │ one engine call at a time, on the next engine       │
                 └ engine away: again, elsewhere ◀┘                    └ no score: the sample stays out

A generate function may give one sample, or a list where it cut a trajectory into several.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slime.chat import ChatFormat
from slime.compat.prompts.hooks import PromptHooks, sampling_params
from slime.compat.prompts.rewards import GroupComparer, SampleJudge
from slime.compat.sample import Group, Sample, flatten
from slime.engines.dialect.versions import version_to_wire
from slime.errors import EngineRejected, EngineUnavailable, PluginError
from slime.plugins.calling import NamedCall
from slime.protocols import Engine, GenerateRequest
from slime.types import SamplingParams

log = logging.getLogger(__name__)

_RETRY_S = 1.0
MAX_FAILED_GENERATIONS = 3
"""Calls of a generate hook that fail in a row before the run ends: nothing would ever be trained."""


@dataclass(eq=False)
class GroupMaker:
    """Generates and rewards groups on a number of engines.

    Attributes:
        judge: of the rewards; None where the generate hook gives them.
        engines: asked in turn.
    """

    hooks: PromptHooks
    judge: SampleJudge | GroupComparer | None
    engines: Sequence[Engine]
    chat: ChatFormat

    def __post_init__(self) -> None:
        self.config = self.hooks.config
        self._next_engine = itertools.cycle(self.engines)
        self._free = asyncio.Semaphore(self.config.engine.max_running_requests * len(self.engines))
        self._num_failed = 0

    @property
    def is_unjudged(self) -> bool:
        """Whether the reward is switched off, so that nothing sampled from now on could be trained."""
        return self.judge is not None and self.judge.is_disabled

    async def make(self, group: Group, rollout_id: int, *, evaluation: bool = False) -> Group:
        """The group with replies and rewards.

        Raises:
            PluginError: a hook failed, or gave what it must not.
            EngineUnavailable: no engine answered for as long as starting one may take.
        """
        made = list(
            await asyncio.gather(*(self._generate(sample, rollout_id, evaluation=evaluation) for sample in group))
        )
        await self.reward(made)
        return made

    async def _generate(self, sample: Sample, rollout_id: int, *, evaluation: bool) -> Any:
        """The sample, or several that it was cut into."""
        _refuse_what_is_not_read(sample)
        async with self._free:
            if sample.status not in (Sample.Status.PENDING, Sample.Status.ABORTED):
                return sample  # it came finished from the data source
            if generate := self.hooks.get("custom_generate_function_path"):
                made = await self._ask_hook(generate, sample, evaluation=evaluation)
            else:
                made = await self._ask_engine(sample)
        for part in flatten([made]):
            await self.hooks.call("rollout_sample_hook_path", sample=part, rollout_id=rollout_id, evaluation=evaluation)
        return made

    async def _ask_hook(self, hook: NamedCall, sample: Sample, *, evaluation: bool) -> Any:
        params = sampling_params(self.config, self.chat.stop_token_ids)
        try:
            made = await self.hooks.sample(hook, sample=sample, sampling_params=params, evaluation=evaluation)
        except PluginError as error:
            self._num_failed += 1
            log.warning("generate hook failed sample=%s error=%s", sample.index, error)
            if self._num_failed >= MAX_FAILED_GENERATIONS:
                raise
            sample.status = Sample.Status.FAILED
            return sample
        self._num_failed = 0
        parts = flatten([made])
        if not parts or not all(isinstance(part, Sample) for part in parts):
            raise PluginError(f"{hook.place} gave {type(made).__name__}; it gives a sample, or a list of them")
        if len(parts) > 1 and len({part.rollout_id for part in parts} - {None}) != 1:
            raise PluginError(f"{hook.place} gave parts of one trajectory that do not share a rollout_id")
        return made

    async def _ask_engine(self, sample: Sample) -> Sample:
        """Sample a reply to the prompt; on the next engine if one is away."""
        sampling = SamplingParams(
            temperature=self.config.prompts.rollout_temperature,
            max_new_tokens=self.config.server.default_max_tokens,
            stop_token_ids=self.chat.stop_token_ids,
        )
        prompt_ids = sample.prompt_ids or self._prompt_ids(sample)
        deadline = time.monotonic() + self.config.engine.engine_start_timeout_s
        while True:
            request_id, adapter = f"prompt{uuid.uuid4().hex}", self.config.lora.shared_adapter
            request = GenerateRequest(request_id, tuple(prompt_ids), sampling, adapter)
            try:
                completion = await next(self._next_engine).generate(request)
                break
            except EngineRejected as error:
                log.warning("prompt refused sample=%s error=%s", sample.index, error)
                sample.status = Sample.Status.FAILED
                return sample
            except EngineUnavailable:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_RETRY_S)
        sample.reset_for_retry()
        sample.tokens = list(prompt_ids)
        sample.append_response_tokens(
            tokens=completion.token_ids,
            log_probs=completion.logprobs,
            text=completion.text,
            meta_info={"finish_reason": {"type": completion.finish_reason}},
        )
        sample.policy_versions = list(completion.policy_versions)
        sample.weight_versions = [version_to_wire(span.version) for span in completion.spans]
        return sample

    def _prompt_ids(self, sample: Sample) -> tuple[int, ...]:
        if isinstance(sample.prompt, str):
            return self.chat.encode(sample.prompt)
        return self.chat.render(sample.prompt)

    async def reward(self, group: Group) -> None:
        """Give a reward to every finished sample that has none; a reward that fails leaves it without."""
        if self.judge is not None:
            await self.judge.reward(group)


def _refuse_what_is_not_read(sample: Sample) -> None:
    """Attributes of slime's sample that would change what is done with it, and that nothing here looks at."""
    for name in ("generate_function_path", "custom_rm_path", "multimodal_inputs"):
        if getattr(sample, name):
            raise PluginError(f"sample.{name} is set: hooks are those of the run's flags, and prompts are text")
