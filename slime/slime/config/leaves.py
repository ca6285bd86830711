"""The configuration tree seen as a flat list of leaves, and the one place where a text becomes a value.

    sections.py ── walk ──▶ Leaf(section, name, type, default, help) ── spell ──▶ flag · variable · YAML key

A leaf's flag, its YAML key and its own variable follow from its name (`max_staleness` → `--max-staleness`,
`rollout.max_staleness`, `OPENCLAW_RL_MAX_STALENESS`); published variables stand beside the declaration.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from slime.config.checks.conditions import Condition
from slime.config.sections import Config, flag_of
from slime.errors import ConfigError, nearest

ENV_PREFIX = "OPENCLAW_RL_"

NOT_BUILT: dict[tuple[str, str], str] = {
    ("engine.backend", "vllm"): "the vLLM backend is not built yet; use embedded or sglang",
}
"""Published choices that cannot be had yet, by leaf and value."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting.

    Attributes:
        section: field of `Config` that holds it, e.g. `rollout`.
        name: its field there, unique in the whole tree, e.g. `max_staleness`.
        type: the annotation as written, e.g. `int` or `Literal["auto", "cpu"]`.
        published_env: variables of published fame that are read too, the first one set wins.
        needs: what it needs to have an effect; None: it always has one.
        bounds: `ge`, `gt`, `le`, `lt`.
    """

    section: str
    name: str
    type: Any
    default: Any
    help: str
    published_env: tuple[str, ...]
    is_secret: bool
    needs: Condition | None
    bounds: Mapping[str, float]

    @property
    def path(self) -> str:
        """Where it stands in the YAML file: `rollout.max_staleness`."""
        return f"{self.section}.{self.name}"

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def negative_flag(self) -> str:
        return "--no-" + self.flag.removeprefix("--")

    @property
    def env(self) -> tuple[str, ...]:
        """Every variable it is read from, strongest first."""
        return (*self.published_env, ENV_PREFIX + self.name.upper())

    @property
    def is_switch(self) -> bool:
        """Whether its flag stands alone: `--x`, `--no-x`."""
        return self.type is bool

    @property
    def choices(self) -> tuple[str, ...]:
        """The words it may be, or nothing when it is not a choice."""
        return typing.get_args(self.type) if typing.get_origin(self.type) is Literal else ()

    @property
    def type_words(self) -> str:
        """The type for people: `integer ≥ 1`, `auto | cpu | cuda`, `directory`."""
        if self.choices:
            return " | ".join(self.choices)
        words = {int: "integer", float: "number", bool: "yes or no", str: "text", Path: "directory"}[self.type]
        signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
        return " ".join([words, " and ".join(f"{signs[key]} {bound:g}" for key, bound in self.bounds.items())]).strip()

    @property
    def article(self) -> str:
        return "an" if self.type is int else "a"


@functools.cache
def leaves() -> dict[str, Leaf]:
    """Every leaf of the tree by its path, in the order of declaration."""
    found: dict[str, Leaf] = {}
    for section, cls in typing.get_type_hints(Config).items():
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            leaf = Leaf(section, field.name, hints[field.name], field.default, **field.metadata)
            found[leaf.path] = leaf
    return found


@functools.cache
def section_help() -> dict[str, str]:
    """What each section is about: the first line of its docstring, by section name, in order."""
    return {name: (cls.__doc__ or "").splitlines()[0] for name, cls in typing.get_type_hints(Config).items()}


def build(values: Mapping[str, Any]) -> Config:
    """The typed tree from values by path; what is not given keeps its default."""
    sections = typing.get_type_hints(Config)
    given: dict[str, dict[str, Any]] = {name: {} for name in section_help()}
    for path, value in values.items():
        section, _, name = path.partition(".")
        given[section][name] = value
    return Config(**{name: sections[name](**fields) for name, fields in given.items()})


def as_flags(config: Config, sections: Collection[str]) -> list[str]:
    """Flags that say every setting of some sections, so that no variable or file of the other program's counts.

    Secrets are left out: a command line can be read by everybody on the machine.

    >>> as_flags(Config(server=ServerConfig(port=8001)), ["server"])
    ['--host=127.0.0.1', '--port=8001', …]
    """
    flags: list[str] = []
    for leaf in leaves().values():
        if leaf.section in sections and not leaf.is_secret:
            value = getattr(getattr(config, leaf.section), leaf.name)
            switch = leaf.flag if value else leaf.negative_flag
            flags.append(switch if leaf.is_switch else f"{leaf.flag}={value}")
    return flags


def convert(leaf: Leaf, value: Any, place: str) -> Any:
    """The value of a leaf from a text (flag, variable) or a YAML scalar.

    Raises:
        ConfigError: one line that names the place and what would be accepted.
    """
    if leaf.type is not str and isinstance(value, str):
        value = value.strip()
    if leaf.choices and str(value).lower() in leaf.choices:  # ROLLOUT_LOG_LEVEL=DEBUG
        value = str(value).lower()
    try:
        converted = _adapter(leaf.path).validate_python(value)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{place}: {_complaint(leaf, value, error)}") from None
    return converted.expanduser() if isinstance(converted, Path) else converted


def _complaint(leaf: Leaf, value: Any, error: pydantic.ValidationError) -> str:
    if hint := NOT_BUILT.get((leaf.path, str(value))):
        return hint
    shown = "that value" if leaf.is_secret else repr(value)
    if leaf.choices:
        return f"{shown} is not one of {', '.join(leaf.choices)}{nearest(str(value), leaf.choices)}"
    if leaf.is_switch:
        return f"{shown} is not yes or no; write true or false"
    if error.errors()[0]["type"].startswith(("greater", "less", "finite")):
        return f"{shown} is out of bounds; give {leaf.article} {leaf.type_words}"
    return f"{shown} is not {leaf.article} {leaf.type_words}"


@functools.cache
def _adapter(path: str) -> pydantic.TypeAdapter[Any]:
    leaf = leaves()[path]
    constraints: dict[str, Any] = {**leaf.bounds, **({"allow_inf_nan": False} if leaf.type is float else {})}
    annotation: Any = Annotated[leaf.type, pydantic.Field(**constraints)]
    return pydantic.TypeAdapter(annotation, config=pydantic.ConfigDict(coerce_numbers_to_str=leaf.type is str))
