"""From flags, environment and YAML file to one typed tree, with the origin of every value.

    argv ────▶ flags ──┐
    environ ─▶ names ──┼─ published spellings (aliases) ─▶ {path: text} ─ convert ─▶ Config + origins
    FILE ────▶ keys ───┘            the first of the three that says something wins; else the default

This is the only file that reads the environment. What it does not understand it refuses with one line on
stderr that names the place and the nearest valid spelling, and exit code 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from slime.config.aliases import ALIASES
from slime.config.checks.remarks import DEFAULT, FOLLOWS, remarks, without_effect
from slime.config.gpus import named_gpus
from slime.config.leaves import ENV_PREFIX, Leaf, build, convert, leaves, section_help
from slime.config.output_paths import anchored
from slime.config.sections import Config, MonitorConfig
from slime.config.yaml_file import read_yaml
from slime.errors import ConfigError, nearest

CONFIG_ENV = ENV_PREFIX + "CONFIG"

ANY_STALENESS = 1_000_000
"""More updates than any run makes."""

_Said = dict[str, tuple[Any, str]]
"""Values and their origins, by path."""


@dataclass(frozen=True)
class Resolution:
    """A configuration and how it came about.

    Attributes:
        origins: by path, where the value was said: `--lr`, `MODEL_PATH`, `run.yaml:7`, or `default`.
        notices: what published spellings were taken as, what overrides what, and what has no effect; one line each.
        refusals: why a program given these settings does not start; only where it was asked to show them.
        sections: the sections this program has.
    """

    config: Config
    origins: Mapping[str, str]
    notices: tuple[str, ...]
    refusals: tuple[str, ...]
    sections: tuple[str, ...]

    def as_yaml(self) -> str:
        """Every value with its origin beside it, as a file that `--config` reads back; secrets are left out."""
        lines: list[str] = []
        idle = {leaf.path: leaf.needs for leaf in without_effect(self.config, self.origins, self.sections)}
        for section in self.sections:
            lines.append(f"{section}:")
            for leaf in (leaf for leaf in leaves().values() if leaf.section == section):
                value = getattr(getattr(self.config, section), leaf.name)
                shown = "********" if leaf.is_secret and value else _yaml_scalar(value)
                entry = f"{leaf.name}: {shown}"
                need = idle.get(leaf.path)
                origin = self.origins[leaf.path] + (f"; no effect: needs {need.needs}" if need else "")
                lines.append(f"  {'# ' if leaf.is_secret and value else ''}{entry:<44}  # {origin}")
        return "\n".join(lines) + "\n"


def load_config(
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    prog: str | None = None,
    sections: Iterable[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration of a program started with `argv` (default: this process's) in `environ`.

    Prints notices on stderr; answers `--help` and `--print-config` on stdout and exits with 0; shows a
    mistake of the user's as one line on stderr and exits with 2.

    Args:
        prog: how the program is started, e.g. `python -m openclaw.server`; for help and errors.
        sections: the sections it has (all when None); flags of the others are refused, their variables left alone.
        defaults: values by path that this program puts in place of the tree's own.
    """
    prog = prog or Path(sys.argv[0]).name
    argv = sys.argv[1:] if argv is None else argv
    chosen = _chosen(sections)
    try:
        resolution = resolve(argv, environ, prog=prog, sections=chosen, defaults=defaults, cwd=Path.cwd())
    except ConfigError as error:
        for line in str(error).splitlines():
            print(f"{prog}: error: {line}", file=sys.stderr)
        raise SystemExit(2) from None
    for refusal in resolution.refusals:
        print(f"{prog}: note: a start is refused: {refusal}", file=sys.stderr)
    for notice in resolution.notices:
        print(f"{prog}: note: {notice}", file=sys.stderr)
    if "--print-config" in argv:
        print(resolution.as_yaml(), end="")
        raise SystemExit(0)
    return resolution.config


def resolve(
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    prog: str = "openclaw-rl",
    sections: Iterable[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    cwd: Path | None = None,
) -> Resolution:
    """As `load_config`, without printing (but for `--help`) and exiting.

    Args:
        cwd: the directory that relative output directories are under, unless --base-dir says otherwise; None leaves
            them as they were written.

    Raises:
        ConfigError: a line for each mistake, which names the place and the nearest valid spelling.
    """
    chosen = _chosen(sections)
    environ = os.environ if environ is None else environ
    flags = _parse(argv, prog, chosen)
    file = flags.pop("--config", None) or environ.get(CONFIG_ENV)
    only_shown = flags.pop("--print-config", None)

    notices = _Notices()
    said: _Said = {path: (value, f"default of {prog}") for path, value in (defaults or {}).items()}
    if file:
        said |= _from_yaml(Path(file), chosen, notices)
    said |= _from_environ(environ, chosen, notices)
    said |= _from_flags(flags, chosen, notices)
    notices.admit_what_was_overridden(said)

    values: dict[str, Any] = {}
    for path, (value, origin) in said.items():
        try:
            values[path] = convert(leaves()[path], value, origin)
        except ConfigError as error:
            notices.mistakes.append(str(error))
    mistakes = notices.mistakes if only_shown else [*notices.mistakes, *notices.refusals]
    if mistakes:
        raise ConfigError("\n".join(dict.fromkeys(mistakes)))
    origins = {path: said[path][1] if path in said else DEFAULT for path in leaves()}
    for path, value, because in _implied(values):
        values[path], origins[path] = value, FOLLOWS + origins[because]
    if cwd is not None:
        values |= _anchored(values, chosen, environ, cwd)
    config = build(values)
    told = dict.fromkeys([*notices, *remarks(config, origins, environ, chosen)])
    return Resolution(config, origins, tuple(told), tuple(notices.refusals), chosen)


def _anchored(
    values: Mapping[str, Any], sections: Collection[str], environ: Mapping[str, str], cwd: Path
) -> dict[str, Path]:
    """Every output directory, absolute, by path."""
    outputs = {leaf.path: leaf for leaf in leaves().values() if leaf.type is Path and leaf.section in sections}
    asked = {leaf.flag: Path(values.get(path, leaf.default)) for path, leaf in outputs.items()}
    found = anchored(asked, values.get("output.base_dir", ""), environ, cwd)
    return {path: found[leaf.flag] for path, leaf in outputs.items()}


def _implied(values: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """Settings that nobody wrote but that another one makes plain: (path, value, path of the reason)."""
    implied: list[tuple[str, Any, str]] = []
    if not values.get("plugin.custom_rm_path"):
        judged_by = ["judge.judge_model_path", "judge.judge_url"]
        if not any(values.get(path) for path in (*judged_by, "judge.judge_model")):  # a published name of a judge
            implied.append(("judge.judge_model_path", values.get("judge.prm_model_path"), "judge.prm_model_path"))
            judged_by.append("judge.prm_model_path")
        implied += [("judge.judge", "llm", reason) for reason in judged_by]
    for reason, count in (("cluster.train_gpus", "num_train_ranks"), ("cluster.rollout_gpus", "num_engines")):
        implied.append((f"cluster.{count}", len(named_gpus(values.get(reason, ""))), reason))
    run_dir = values.get("monitor.run_dir", MonitorConfig.run_dir)
    implied += [
        ("server.rl_buffer_dir", run_dir / "conversations", "rollout.data_path"),
        ("rollout.max_staleness", ANY_STALENESS, "rollout.data_path"),  # what was said before is as old as it is
        ("cluster.serve", False, "rollout.data_path"),
    ]
    return [(path, value, reason) for path, value, reason in implied if path not in values and values.get(reason)]


class _Notices(list[str]):
    """What there is to tell; and apart from it what cannot be read, and what is understood and refused.

    `claims` are the notices that say what a published spelling was taken as: by notice, its place and its settings.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mistakes: list[str] = []
        self.refusals: list[str] = []
        self.claims: dict[str, tuple[str, Mapping[str, Any]]] = {}

    def admit_what_was_overridden(self, said: Mapping[str, tuple[Any, str]]) -> None:
        """Say so of a spelling that another source beat in all that it set, instead of what it was taken as."""
        for number, notice in enumerate(self):
            place, values = self.claims.get(notice, ("", {}))
            if values and all(str(said[path][0]) != str(value) for path, value in values.items()):
                self[number] = f"{place} is overridden by {said[next(iter(values))][1]}"


# ── Flags ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def _parse(argv: Sequence[str], prog: str, sections: Collection[str]) -> dict[str, Any]:
    """The flags given, by spelling: `{"--lr": "1e-5", "--debug": "true"}`."""
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [--config FILE] [--print-config] [--flag VALUE …]",
        description="A value is taken from its flag, else from its environment variable, else from the YAML file, else "
        f"it is the default. The variable of --max-staleness is {ENV_PREFIX}MAX_STALENESS, its YAML key rollout: "
        "max_staleness; some have an older variable too, named below.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=_help_formatter,
    )
    parser.add_argument("--config", dest="--config", metavar="FILE", help=f"YAML file of settings (env {CONFIG_ENV})")
    parser.add_argument(
        "--print-config", dest="--print-config", action="store_true", help="show every value and its origin, and exit"
    )
    _add_sections(parser, sections)
    for (where, name), alias in ALIASES.items():
        if where == "flag" and alias.section in sections:
            parser.add_argument(name, dest=name, nargs="?", const="true", help=argparse.SUPPRESS)
    known, extras = parser.parse_known_args(list(argv))
    if extras:
        raise ConfigError(_unknown_flag(extras[0], prog, sections))
    return vars(known)


def flags_help(sections: Collection[str]) -> str:
    """The flags of these sections as `--help` lists them, for a command that takes them beside its own."""
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False, formatter_class=_help_formatter)
    _add_sections(parser, sections)
    return parser.format_help()


def _help_formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=34, width=118)


def _add_sections(parser: argparse.ArgumentParser, sections: Collection[str]) -> None:
    for section, meaning in section_help().items():
        if section in sections:
            group = parser.add_argument_group(section, meaning)
            for leaf in (leaf for leaf in leaves().values() if leaf.section == section):
                _add(group, leaf)


def _add(group: argparse._ArgumentGroup, leaf: Leaf) -> None:
    facts = [
        f"default {_words(leaf.default)}" if leaf.default != "" else "",
        f"env {', '.join(leaf.published_env)}" if leaf.published_env else "",
    ]
    remark = "; ".join(filter(None, facts))
    text = (f"{leaf.help} ({remark})" if remark else leaf.help).replace("%", "%%")
    if leaf.is_switch:
        group.add_argument(leaf.flag, dest=leaf.flag, nargs="?", const="true", metavar="yes|no", help=text)
        group.add_argument(
            leaf.negative_flag, dest=leaf.flag, action="store_const", const="false", help=argparse.SUPPRESS
        )
    else:
        metavar = "|".join(leaf.choices) or leaf.type_words.split()[0].upper()
        group.add_argument(leaf.flag, dest=leaf.flag, metavar=metavar, help=text)


def _unknown_flag(word: str, prog: str, sections: Collection[str]) -> str:
    if not word.startswith("-"):
        return f"unexpected argument {word!r}; every setting is a --flag"
    flag = word.partition("=")[0]
    elsewhere = next((leaf for leaf in leaves().values() if flag in (leaf.flag, leaf.negative_flag)), None)
    if elsewhere:
        return f"{flag} sets {elsewhere.path}, and {prog} has only {', '.join(sections)}"
    own = [leaf.flag for leaf in leaves().values() if leaf.section in sections]
    published = [name for (where, name), alias in ALIASES.items() if where == "flag" and alias.section in sections]
    return f"unknown flag {flag}{nearest(flag, ['--config', '--print-config', *own, *published]) or '; see --help'}"


# ── The three sources, each to {path: (value, origin)} ────────────────────────────────────────────────────────────


def _from_flags(flags: Mapping[str, Any], sections: Collection[str], notices: _Notices) -> _Said:
    own = {leaf.flag: leaf for leaf in leaves().values()}
    return _said("flag", flags, [(flag, own[flag]) for flag in flags if flag in own], {}, sections, notices)


def _from_environ(environ: Mapping[str, str], sections: Collection[str], notices: _Notices) -> _Said:
    own = [(name, leaf) for leaf in leaves().values() for name in reversed(leaf.env)]
    known = {CONFIG_ENV, *(name for name, _ in own)}
    for name in environ:
        if name.startswith(ENV_PREFIX) and name not in known:
            raise ConfigError(f"unknown variable {name}{nearest(name, known)}")
    given = {name: value for name, value in environ.items() if value}  # `X=` in a shell means: not set
    return _said("env", given, own, {}, sections, notices)


def _from_yaml(file: Path, sections: Collection[str], notices: _Notices) -> _Said:
    """The whole file is checked, so that one may serve several programs; only their own sections count."""
    entries = read_yaml(file)
    places = {key: f"{file}:{entry.line}: {key}" for key, entry in entries.items()}
    own = [(key, leaves()[key]) for key in entries if key in leaves()]
    for key, leaf in own:
        if leaf.section not in sections:
            convert(leaf, entries[key].value, places[key])
    unknown = [key for key in entries if key not in leaves() and ("yaml", key) not in ALIASES]
    notices.mistakes += [f"{file}:{entries[key].line}: {_unknown_key(key)}" for key in unknown]
    return _said("yaml", {key: entry.value for key, entry in entries.items()}, own, places, sections, notices)


def _said(
    where: str,
    given: Mapping[str, Any],
    own: Iterable[tuple[str, Leaf]],
    places: Mapping[str, str],
    sections: Collection[str],
    notices: _Notices,
) -> _Said:
    """What one source says of these sections: published spellings, and over them our own.

    Args:
        given: everything written there, by spelling.
        own: our spellings, of one leaf the weakest first.
        places: what messages call a spelling, where that is not the spelling itself.
    """
    said: _Said = {}

    def say(path: str, value: Any, place: str) -> None:
        if path in said and said[path][0] != value:
            notices.append(f"{said[path][1]} is overridden by {place}")
        said[path] = (value, place)

    for name, value in given.items():
        alias = ALIASES.get((where, name))
        if alias is None or alias.section not in sections:
            continue
        place = places.get(name, name)
        try:
            values, notice = alias.rule(value, given)
        except ConfigError as error:
            notices.refusals.append(f"{place}: {error}")
            continue
        if notice:
            notices.append(f"{place}: {notice}")
            notices.claims[notices[-1]] = (place, values)
        for path, meant in values.items():
            say(path, meant, place)
    for name, leaf in own:
        if name in given and leaf.section in sections:
            say(leaf.path, given[name], places.get(name, name))
    return said


def _unknown_key(key: str) -> str:
    section, _, name = key.rpartition(".")
    everywhere = {leaf.name: leaf.section for leaf in leaves().values()}
    aliases = [name for where, name in ALIASES if where == "yaml"]
    sections = {*section_help(), *(name.partition(".")[0] for name in aliases)}
    if section not in sections:
        return f"unknown section {section or name}{nearest(section or name, sections)}"
    if name in everywhere:
        return f"unknown key {key}; {name} stands under {everywhere[name]}"
    inside = [path.partition(".")[2] for path in (*leaves(), *aliases) if path.startswith(section + ".")]
    return f"unknown key {key}{nearest(name, inside) or nearest(name, everywhere)}"


# ── Words ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _chosen(sections: Iterable[str] | None) -> tuple[str, ...]:
    known = tuple(section_help())
    wanted = known if sections is None else tuple(sections)
    assert set(wanted) <= set(known), f"no such section: {set(wanted) - set(known)}"
    return tuple(name for name in known if name in wanted)


def _yaml_scalar(value: Any) -> str:
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
