"""Reads a YAML settings file into flat keys that know their line.

rollout:                      ─▶  {"rollout.max_staleness": Entry(4, line=2)}
  max_staleness: 4
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slime.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and the line it was written on, counted from 1."""

    value: Any
    line: int


def read_yaml(file: Path) -> dict[str, Entry]:
    """Every setting in `file` by dotted key, in order.

    Raises:
        ConfigError: the file is missing, is not YAML, says a key twice, or gives a key nothing.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read --config {file}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}"
        ) from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{file}:{line}: not YAML: {error.problem}") from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{file}:1: a settings file holds sections, e.g. `rollout:` with `max_staleness: 4` under it")
    entries: dict[str, Entry] = {}
    _flatten(file, "", root, entries)
    return entries


def _flatten(file: Path, prefix: str, mapping: yaml.MappingNode, entries: dict[str, Entry]) -> None:
    seen: set[str] = set()
    for key_node, value_node in mapping.value:
        line = key_node.start_mark.line + 1
        key = f"{prefix}{key_node.value}"
        if key in seen:
            raise ConfigError(f"{file}:{line}: {key} is written twice")
        seen.add(key)
        if isinstance(value_node, yaml.MappingNode):
            _flatten(file, f"{key}.", value_node, entries)
            continue
        value = _value(value_node)
        if value is None:
            raise ConfigError(f"{file}:{line}: {key} has no value; write one or leave the line out")
        entries[key] = Entry(value, line)


def _value(node: yaml.Node) -> Any:
    """A scalar as YAML types it; a list of scalars as the comma-separated text that such settings take."""
    value = yaml.SafeLoader("").construct_object(node, deep=True)
    return ",".join(map(str, value)) if isinstance(value, list) else value
