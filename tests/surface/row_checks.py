"""What a row of the published pages is tried with: the literal, as it is typed, and what has to come of it.

    A 34  --num-rollout-workers 4   translated  flags        ─▶ judge.num_judge_workers=4, and a note names the flag
    A 91  async def collect_opd_…(  answered    rollout FILE ─▶ one line that names --custom-generate-function-path
    B 84  terminal-rl/              later       page P#H !D  ─▶ that section says it, and folder D is not there

`says` is a list: `section.setting=value` (written by this literal), `tests/…::name` (a test that proves the rest), else
a phrase of one line that is told. A row that another test proves whole names that test and the files it is about.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import pytest
import yaml
from published_pages import cut, page, write
from slime.config.checks.contradictions import RolloutFacts, RolloutKind, check_rollout
from slime.config.checks.startup import check_startup
from slime.config.loader import Resolution, resolve
from slime.errors import ConfigError, PluginError
from slime.monitor import Monitor, read_metrics
from slime.plugins.hooks import PROMPT_HOOKS, load_rollout
from slime.plugins.losses import load_loss
from slime.plugins.rewards import load_reward
from slime.plugins.settings import plugin_settings
from slime.tools import collecting

ROOT = Path(__file__).parents[2]

EXPORTED = {
    "CKPT_SAVE_DIR": "./checkpoints",
    "MAJORITY_VOTE_N": "5",
    "MAJORITY_VOTE_THRESHOLD": "0.6",
    "OPENCLAW_PORT": "8000",
    "RESUME_CKPT": "./checkpoints/checkpoint-500",
}
"""What page B exports before it uses it."""

_SETTING = re.compile(r"(\w+)\.(\w+)=(.*)")


class Row(NamedTuple):
    """One row: where it stands, what it is (`works`, `translated`, …), and how that is tried."""

    page: str
    line: int
    literal: str
    state: str
    check: str
    given: str
    says: str

    def expected(self) -> tuple[list[str], list[str]]:
        """What has to come of it, without the tests that it names; and those."""
        parts = [part.strip() for part in self.says.split(" ; ") if part.strip()]
        tests = [part for part in parts if re.match(r"tests/\S+::", part)]
        return [part for part in parts if part not in tests], tests


@dataclass(frozen=True, slots=True)
class Place:
    """Where rows are tried: the folder of recorded data, an empty folder, and what a test may replace."""

    shared_dir: Path
    folder: Path
    monkeypatch: pytest.MonkeyPatch


def rows() -> list[Row]:
    """The whole table."""
    lines = (ROOT / "tests/surface/rows.tsv").read_text(encoding="utf-8").splitlines()[2:]
    fields = [line.split("\t") for line in lines]
    return [Row(page_name, int(line), *rest) for page_name, line, *rest in fields]


def assert_row(row: Row, place: Place) -> None:
    """The literal stands on its line, and does what its row says."""
    assert row.literal in page(place.shared_dir, row.page)[row.line - 1], "it stands on another line"
    expected, tests = row.expected()
    CHECKS[row.check](row, expected, place)
    for named in tests:
        path, _, function = named.partition("::")
        assert function in _functions(path), f"{named} is gone"


# ── Settings ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Told(NamedTuple):
    """What a literal came to: a resolution unless it is refused, and every line about it."""

    resolution: Resolution | None
    lines: list[str]


def _resolved(argv: Sequence[str], environ: Mapping[str, str]) -> Told:
    try:
        resolution = resolve(argv, environ)
    except ConfigError as error:
        return Told(None, str(error).splitlines())
    return Told(resolution, list(resolution.notices))


def _assert_told(row: Row, told: Told, expected: Sequence[str], *names: str) -> None:
    """`names`: the spellings tried, of which one must be the origin of every setting and in a line of every answer."""
    for part in expected:
        setting = _SETTING.fullmatch(part)
        if setting is None:
            assert any(part in line for line in told.lines), (part, told.lines)
            continue
        assert told.resolution is not None, told.lines
        section, name, value = setting.groups()
        found = getattr(getattr(told.resolution.config, section), name)
        assert type(found)(value) == found if isinstance(found, float | Path) else value == str(found), (part, found)
        origin = told.resolution.origins[f"{section}.{name}"]
        assert any(spelling in origin for spelling in names), (part, origin)
    if row.state == "works":
        assert told.resolution is not None, told.lines
    else:
        assert any(names[0] in line for line in told.lines), told.lines


def _try_flags(row: Row, expected: Sequence[str], place: Place) -> None:
    argv = shlex.split(Template(row.literal).safe_substitute(EXPORTED))
    told = _resolved([*shlex.split(row.given), *argv], {})
    _assert_told(row, told, expected, argv[0])


def _try_variable(row: Row, expected: Sequence[str], place: Place) -> None:
    name, _, value = shlex.split(row.literal)[-1].partition("=")
    words = shlex.split(row.given)
    others = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    argv = [word for word in words if word.partition("=")[0] not in others]
    told = _resolved(argv, {name: Template(value).safe_substitute(EXPORTED), **others})
    _assert_told(row, told, expected, name, *others)


def _array(row: Row, place: Place) -> list[str]:
    """The words of an array whose quote opens in the literal and closes on the same line or a later one."""
    text = "\n".join(page(place.shared_dir, row.page)[row.line - 1 :])
    _, _, after = text[text.index(row.literal) :].partition('"')
    inside = Template(after.partition('"')[0]).safe_substitute(EXPORTED)
    return [word for word in inside.split() if word != "\\"]


def _try_array(row: Row, expected: Sequence[str], place: Place) -> None:
    words = _array(row, place)
    told = _resolved([*shlex.split(row.given), *words], {})
    _assert_told(row, told, expected, *(word for word in words if word.startswith("--")))


def _try_start(row: Row, expected: Sequence[str], place: Place) -> None:
    """An array that is read, and that a start answers: with a model that is there, so that only the array is wrong."""
    model = place.folder / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    for name in ("tokenizer.json", "chat_template.jinja", "model.safetensors"):
        (model / name).touch()
    resolution = resolve(["--model-path", str(model), *_array(row, place)], {})
    with pytest.raises(ConfigError) as caught:
        check_startup(resolution.config)
    _assert_one_line(str(caught.value), expected)


def _try_key(row: Row, expected: Sequence[str], place: Place) -> None:
    section, *others = row.given.split()
    keys: dict[str, Any] = {}
    inside = keys
    for part in section.split("."):
        inside = inside.setdefault(part, {})
    inside |= {key: yaml.safe_load(value) for key, value in (other.split("=", 1) for other in others)}
    ((name, value),) = yaml.safe_load(row.literal).items()
    inside[name] = value
    file = place.folder / "run.yaml"
    file.write_text(yaml.safe_dump(keys))
    told = _resolved(["--config", str(file)], {})
    _assert_told(row, told, expected, f"{section}.{name}", *(f"{section}.{other.split('=')[0]}" for other in others))


def _try_plugin_setting(row: Row, expected: Sequence[str], place: Place) -> None:
    settings = plugin_settings(resolve(shlex.split(row.given), {}).config)
    for name, value in (part.split("=") for part in expected):
        assert f'"{name}"' in row.literal
        assert settings[name] == float(value)


# ── Files, programs, pages ─────────────────────────────────────────────────────────────────────────────────────────


def _assert_one_line(said: str, expected: Sequence[str]) -> None:
    assert "\n" not in said
    for phrase in expected:
        assert phrase in said, (phrase, said)


def _printed(row: Row, place: Place) -> Path:
    """The file that the literal is a line of, cut out of the page."""
    assert row.literal in cut(place.shared_dir, row.given)
    return write(place.shared_dir, row.given, place.folder)


def _load_loss(row: Row, expected: Sequence[str], place: Place) -> None:
    hook = load_loss(str(_printed(row, place)))
    assert set(expected) <= hook.asks_for


def _load_rollout(row: Row, expected: Sequence[str], place: Place) -> None:
    with pytest.raises(PluginError) as caught:
        load_rollout(str(_printed(row, place)))
    _assert_one_line(str(caught.value), expected)


def _load_reward(row: Row, expected: Sequence[str], place: Place) -> None:
    settings = plugin_settings(resolve(["--prm-model-path", "/rm"], {}).config)
    with pytest.raises(PluginError) as caught:
        load_reward(str(_printed(row, place)), settings)
    _assert_one_line(str(caught.value), expected)


def _try_live(row: Row, expected: Sequence[str], place: Place) -> None:
    """A hook that is read, and that a run on conversations answers."""
    live = RolloutFacts(RolloutKind.CONVERSATIONS, "custom_rollout.py", False, 1, PROMPT_HOOKS)
    with pytest.raises(ConfigError) as caught:
        check_rollout(resolve(shlex.split(row.literal), {}).config, live)
    _assert_one_line(str(caught.value), [shlex.split(row.literal)[0], *expected])


def _try_collector(row: Row, expected: Sequence[str], place: Place) -> None:
    """collect_rollouts.py reads its arguments, up to where it would ask the server."""
    began: dict[str, str] = {}

    async def collect(api_endpoint: str, buffer_dir: Path, output_dir: Path) -> None:
        began.update(api_endpoint=api_endpoint, buffer_dir=str(buffer_dir), output_dir=str(output_dir))

    place.monkeypatch.setattr(collecting, "_collect_until_stopped", collect)
    place.monkeypatch.chdir(place.folder)
    assert collecting.main([*shlex.split(row.given), *shlex.split(row.literal)]) == 0
    for name, value in (part.split("=") for part in expected):
        assert began[name] == value.format(cwd=place.folder)


def _record_metric(row: Row, expected: Sequence[str], place: Place) -> None:
    monitor = Monitor(place.folder)
    monitor.record(1, {row.given: 0.5})
    monitor.close()
    (entry,) = read_metrics(place.folder)
    for name in expected:
        assert entry[name] == (1 if name == "step" else 0.5)


def _read_page(row: Row, expected: Sequence[str], place: Place) -> None:
    where, *absent = row.given.split()
    path, _, anchor = where.partition("#")
    section = " ".join(_section(path, anchor).split())
    for phrase in expected:
        assert phrase in section, f"{where} does not say: {phrase}"
    for name in absent:
        assert not (ROOT / name.removeprefix("!")).exists(), f"{name} is there by now: {where}"


def _look(row: Row, expected: Sequence[str], place: Place) -> None:
    assert not expected, "nothing is tried here that could say it"
    assert row.given or row.expected()[1]
    files = row.given.split()
    for path in files:
        assert (ROOT / path).exists(), path
    for word in row.literal.split():
        assert not files or not word.endswith((".sh", ".py")) or any(path.endswith(word) for path in files), word


def _same_requirements(row: Row, expected: Sequence[str], place: Place) -> None:
    """Files that a person may install from inside a folder ask for what the root's asks for."""

    def asked(path: str) -> list[str]:
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        return [line for line in lines if not line.startswith("#")]

    for path in row.given.split():
        assert [line.replace("-e ..", "-e .") for line in asked(path)] == asked("requirements.txt"), path


def _nothing(row: Row, expected: Sequence[str], place: Place) -> None:
    assert row.state == "theirs"


CHECKS: dict[str, Callable[[Row, Sequence[str], Place], None]] = {
    "flags": _try_flags,
    "env": _try_variable,
    "array": _try_array,
    "start": _try_start,
    "yaml": _try_key,
    "setting": _try_plugin_setting,
    "loss": _load_loss,
    "rollout": _load_rollout,
    "reward": _load_reward,
    "live": _try_live,
    "collector": _try_collector,
    "metric": _record_metric,
    "page": _read_page,
    "there": _look,
    "requirements": _same_requirements,
    "none": _nothing,
}


@cache
def _functions(path: str) -> frozenset[str]:
    """The functions at the top of a file of tests."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def _section(path: str, anchor: str) -> str:
    """What stands under a heading of a page, up to the next heading of its depth."""
    heading = ""
    found: list[str] = []
    for depth, title, line in _lines_with_headings((ROOT / path).read_text(encoding="utf-8")):
        if title and (not heading or depth <= len(heading)):
            slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            heading = "#" * depth if slug == anchor else ""
        if heading:
            found.append(line)
    assert found, f"{path} has no heading #{anchor}"
    return "\n".join(found)


def _lines_with_headings(text: str) -> Iterator[tuple[int, str, str]]:
    fenced = False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        mark, _, title = line.partition(" ")
        is_heading = bool(mark) and not mark.strip("#") and not fenced
        yield (len(mark), title, line) if is_heading else (0, "", line)
