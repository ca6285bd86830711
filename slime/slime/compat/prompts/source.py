"""Where prompts come from: a file of JSON lines, drawn again and again, and what came back unfinished.

    prompts.jsonl ─ shuffled by epoch ─▶ get_samples(n) ─▶ groups of n samples of one prompt
                                              ▲                       │ aborted
                       returned groups first ─┘◀──── add_samples ─────┘

What was given out and not yet trained is remembered, so that a run which goes on from a checkpoint gives those prompts
out again and skips none: the state is written beside the checkpoint that it belongs to.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from slime.chat import ChatFormat
from slime.compat.prompts.hooks import LoadedHooks, PromptHooks
from slime.compat.sample import Group, Sample, flatten
from slime.config.sections import Config, PromptConfig
from slime.errors import ConfigError, PluginError, nearest
from slime.plugins.calling import user_code
from slime.private_files import write_private

BufferFilter = Callable[[list[Group], int], list[Group]]
"""(groups that were returned, how many are wanted) → those to give out, which it takes from the list."""

_SLICE = re.compile(r"(?P<file>.+)@\[(?P<start>-?\d*):(?P<stop>-?\d*)\]")


class DataSource(Protocol):
    """Gives out prompts. What `--data-source-path` names has these two methods, and may have three more:
    `save(rollout_id)` and `load(rollout_id)` keep its state with a checkpoint, and `settle(group_indices)` names the
    groups that need not be given out again, because they are trained or were left out for good."""

    def get_samples(self, num_samples: int) -> list[Group]:
        """So many groups, each `--num-rollouts-per-prompt` samples of one prompt; fewer when there are no more."""
        ...

    def add_samples(self, samples: list[Group]) -> None:
        """Take groups back that could not be finished; they are given out again."""
        ...


def tell(source: DataSource, method: str, *values: Any) -> None:
    """Call a method that a data source need not have: `tell(source, "save", 12)`."""
    if callable(known := getattr(source, method, None)):
        known(*values)


class NoPrompts:
    """The data source of a rollout function in slime's call style that has none, and should not ask it."""

    def get_samples(self, num_samples: int) -> list[Group]:
        raise PluginError("the rollout uses its data source: give --prompt-data or --data-source-path")

    def add_samples(self, samples: list[Group]) -> None:
        self.get_samples(0)


@dataclass
class PromptSource:
    """A data source over a file of prompts.

    Attributes:
        prompts: one sample a row, not yet numbered; see `read_prompts`.
        num_per_prompt: samples of one group.
        state_dir: where states are kept.
        buffer_filter: which of the returned groups are given out first.
    """

    prompts: Sequence[Sample]
    num_per_prompt: int
    shuffle: bool
    seed: int
    state_dir: Path
    buffer_filter: BufferFilter
    _returned: list[Group] = field(default_factory=list, init=False)
    _rows: dict[int, int] = field(default_factory=dict, init=False)
    """Group → row of its prompt, for all that were given out and not settled."""
    _again: list[int] = field(default_factory=list, init=False)
    """Rows that were out when the checkpoint was written."""
    _num_drawn: int = field(default=0, init=False)
    _num_groups: int = field(default=0, init=False)
    _order: tuple[int, list[int]] = field(default=(-1, []), init=False)

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ConfigError("--prompt-data holds no prompt")

    def get_samples(self, num_samples: int) -> list[Group]:
        groups = self.buffer_filter(self._returned, num_samples) if self._returned else []
        return groups + [self._new_group() for _ in range(num_samples - len(groups))]

    def add_samples(self, samples: list[Group]) -> None:
        for sample in flatten(samples):
            if sample.status in (Sample.Status.ABORTED, Sample.Status.FAILED, Sample.Status.PENDING):
                sample.reset_for_retry()
        self._returned += samples

    def settle(self, group_indices: Iterable[int]) -> None:
        """These groups need not be given out again: they are trained, or were left out for good."""
        for index in group_indices:
            self._rows.pop(index, None)

    def save(self, rollout_id: int) -> None:
        """Write the state that belongs to the checkpoint of update `rollout_id`."""
        state = {"drawn": self._num_drawn, "groups": self._num_groups, "out": [*self._rows.values(), *self._again]}
        write_private(self._state_file(rollout_id), json.dumps(state))

    def load(self, rollout_id: int) -> None:
        """Go on as if the updates after `rollout_id` had not been made; from the beginning where there is no state."""
        file = self._state_file(rollout_id)
        if not file.exists():
            return
        state = json.loads(file.read_text(encoding="utf-8"))
        self._num_drawn, self._num_groups = int(state["drawn"]), int(state["groups"])
        self._again = [int(row) for row in state["out"] if int(row) < len(self.prompts)]
        self._returned, self._rows = [], {}

    def _state_file(self, rollout_id: int) -> Path:
        return self.state_dir / f"prompts-{rollout_id}.json"

    def _new_group(self) -> Group:
        row = self._again.pop(0) if self._again else self._draw()
        group_index, self._num_groups = self._num_groups, self._num_groups + 1
        self._rows[group_index] = row
        group: Group = []
        for number in range(self.num_per_prompt):
            sample = copy.deepcopy(self.prompts[row])
            sample.group_index, sample.index = group_index, group_index * self.num_per_prompt + number
            group.append(sample)
        return group

    def _draw(self) -> int:
        epoch, offset = divmod(self._num_drawn, len(self.prompts))
        self._num_drawn += 1
        if self._order[0] != epoch:
            rows = list(range(len(self.prompts)))
            if self.shuffle:
                random.Random(f"{self.seed} {epoch}").shuffle(rows)
            self._order = epoch, rows
        return self._order[1][offset]


def take_first(buffer: list[Group], num_samples: int) -> list[Group]:
    """The oldest of the returned groups."""
    taken = buffer[:num_samples]
    del buffer[:num_samples]
    return taken


def load_data_source(config: Config, loaded: LoadedHooks) -> DataSource:
    """The prompts of `--prompt-data`, or the data source of `--data-source-path`.

    Raises:
        ConfigError: the file is missing or no prompts, or the class has not the methods of a data source.
    """
    hooks, prompts = PromptHooks(config, loaded), config.prompts
    if own := hooks.get("data_source_path"):
        where = f"--data-source-path {config.plugin.data_source_path}"
        with user_code(where):
            source: Any = own({"args": hooks.args, "config": hooks.settings})
        missing = [name for name in ("get_samples", "add_samples") if not callable(getattr(source, name, None))]
        if missing:
            raise PluginError(f"{where}: {type(source).__name__} has no {' and no '.join(missing)}")
        return source  # type: ignore[no-any-return]
    return PromptSource(
        read_prompts(prompts.prompt_data, prompts, ChatFormat.load(config.model.model_path)),
        num_per_prompt=config.rollout.num_rollouts_per_prompt,
        shuffle=prompts.rollout_shuffle,
        seed=prompts.rollout_seed,
        state_dir=config.checkpoint.save_dir / "rollout",
        buffer_filter=_buffer_filter(hooks),
    )


def _buffer_filter(hooks: PromptHooks) -> BufferFilter:
    hook = hooks.get("buffer_filter_path")
    if hook is None:
        return take_first

    def choose(buffer: list[Group], num_samples: int) -> list[Group]:
        before = len(buffer)
        offered = {"args": hooks.args, "config": hooks.settings, "rollout_id": None}
        chosen = hook({**offered, "buffer": buffer, "num_samples": num_samples})
        if not isinstance(chosen, list) or len(chosen) > num_samples or before - len(buffer) != len(chosen):
            raise PluginError(f"{hook.place} has to remove at most num_samples groups from buffer and return them")
        return chosen

    return choose


def read_prompts(path: str, config: PromptConfig, chat: ChatFormat) -> list[Sample]:
    """The prompts of a file of JSON lines, `tasks.jsonl` or a part of it, `tasks.jsonl@[0:500]`.

    A prompt is a text, which is fed as it stands (or as one user message with `--apply-chat-template`), or a list of
    OpenAI messages, which always goes through the model's chat template.

    Raises:
        ConfigError: no such file, or a line that is no prompt; the message names it.
    """
    match = _SLICE.fullmatch(path)
    file, bounds = (Path(match["file"]), match.group("start", "stop")) if match else (Path(path), ("", ""))
    if not file.is_file():
        raise ConfigError(f"--prompt-data {path}: no such file")
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    rows = [(number, line) for number, line in lines if line.strip()]
    rows = rows[slice(*(int(bound) if bound else None for bound in bounds))]
    return [_prompt(f"{file.name}:{number}", line, config, chat) for number, line in rows]


def _prompt(place: str, line: str, config: PromptConfig, chat: ChatFormat) -> Sample:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{place}: not JSON: {error}") from None
    keys = list(row) if isinstance(row, Mapping) else []
    for key, flag, what in ((config.input_key, "--input-key", "prompt"), (config.label_key, "--label-key", "label")):
        if key and key not in keys:
            raise ConfigError(f"{place}: no {key!r} in it; {flag} names the {what}{nearest(key, keys)}")
    metadata = row.get(config.metadata_key) or {}
    if not isinstance(metadata, Mapping):
        raise ConfigError(f"{place}: {config.metadata_key!r} is no mapping; --metadata-key names the metadata")
    prompt, ids = _fed(place, row[config.input_key], config, chat)
    return Sample(
        prompt=prompt,
        prompt_ids=ids,
        label=row[config.label_key] if config.label_key else None,
        metadata=dict(metadata),
    )


def _fed(place: str, prompt: Any, config: PromptConfig, chat: ChatFormat) -> tuple[str, tuple[int, ...]]:
    """The text of a prompt and the ids it is fed as."""
    if isinstance(prompt, str) and not config.apply_chat_template:
        return prompt, chat.encode(prompt)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(messages, list) or not all(isinstance(m, Mapping) and "role" in m for m in messages):
        raise ConfigError(f"{place}: a prompt is a text or a list of messages, not {type(prompt).__name__}")
    ids = chat.render([dict(message) for message in messages])
    return chat.decode(ids), ids
