"""Calibration against closed forms, and the command that runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from judge_server import listening
from slime.config.sections import JudgeConfig
from slime.errors import ConfigError
from slime.judging.calibration import LABELLED, Calibration, calibrate, read_labelled
from slime.judging.llm.api_model import ApiModel
from slime.judging.llm.judge import LlmJudge
from slime.judging.llm.scripted_api import Asked, Fault, Line, ScriptedJudgeApi
from slime.judging.rules.judge import RuleJudge
from slime.judging.scripted import ScriptedJudge
from slime.types import Turn, Verdict

ROWS = [("Thanks!", 1), ("Thanks a lot!", 1), ("No, wrong.", -1), ("Too long.", -1), ("Hm.", 0)]


def write(path: Path, rows: list[tuple[str, int]]) -> Path:
    lines = [json.dumps({"request": "Hi", "reply": "Hello", "next": text, "label": label}) for text, label in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_kappa_is_cohens() -> None:
    """The example of the literature: 50 proposals, two readers, 20 yes-yes, 15 no-no, 5 and 10 apart: p₀ .7, pₑ .5."""
    result = Calibration(Counter({(1, 1): 20, (1, -1): 5, (-1, 1): 10, (-1, -1): 15}), 1.0, 0.0)
    assert result.agreement == pytest.approx(0.7)
    assert result.kappa == pytest.approx(0.4)
    assert result.positive_rate == pytest.approx(0.6)
    assert result.labelled_positive_rate == pytest.approx(0.5)
    assert result.opposite == pytest.approx(0.3)


def test_chance_is_zero_perfection_one_and_unjudged_turns_count_for_nothing() -> None:
    independent = {(label, said): 4 for label in (-1, 0, 1) for said in (-1, 0, 1)}
    assert Calibration(Counter(independent), 1.0, 0.0).kappa == pytest.approx(0.0)
    perfect = Counter({(1, 1): 3, (-1, -1): 5, (0, 0): 2, (1, None): 7})
    assert Calibration(perfect, 1.0, 0.0).kappa == pytest.approx(1.0)
    assert Calibration(perfect, 1.0, 0.0).num_judged == 10
    assert Calibration(Counter({(1, 1): 3}), 1.0, 0.0).kappa == 0.0
    assert Calibration(Counter({(1, None): 3}), 1.0, 0.0).as_json()["agreement"] == 0.0


async def test_a_judge_is_counted_by_label_and_score(tmp_path: Path) -> None:
    said: dict[str, Verdict | None] = {
        "Thanks!": Verdict(1.0, (1.0, 1.0), 1.0),
        "Thanks a lot!": Verdict(0.5, (1.0, 0.0), 0.5),
        "No, wrong.": Verdict(-1.0, (-1.0,), 1.0),
        "Too long.": Verdict(1.0, (1.0,), 1.0),
        "Hm.": None,
    }

    def script(turn: Turn) -> Verdict | None:
        assert turn.next_state is not None
        return said[turn.next_state[0]["content"]]

    result = await calibrate(ScriptedJudge(script), read_labelled(write(tmp_path / "l.jsonl", ROWS)))
    assert result.confusion == {(1, 1): 2, (-1, -1): 1, (-1, 1): 1, (0, None): 1}
    assert (result.agreement, result.mean_agreement, result.mean_vote_entropy) == (0.75, 0.875, 0.25)
    assert result.as_json()["confusion"]["0"] == {"-1": 0, "0": 0, "1": 0, "unjudged": 1}


async def test_an_api_judge_that_reads_well_agrees_and_faults_are_not_scores(tmp_path: Path) -> None:
    def script(asked: Asked) -> Line:
        shown = asked.body["messages"][1]["content"]
        if "Hm." in shown:
            return Fault.HTTP_500
        return r"\boxed{1}" if "Thanks" in shown else r"\boxed{-1}"

    app = ScriptedJudgeApi(script)
    async with listening(app) as url, ApiModel(f"{url}/v1", retries=0) as model:
        judge = LlmJudge(model, JudgeConfig(majority_vote_n=1))
        result = await calibrate(judge, read_labelled(write(tmp_path / "l.jsonl", ROWS)))
    assert app.fired == {Fault.HTTP_500: 1}
    assert (result.agreement, result.kappa, result.num_judged) == (1.0, 1.0, 4)


async def test_the_rules_agree_with_the_set_that_ships() -> None:
    result = await calibrate(RuleJudge(), read_labelled(LABELLED))
    assert result.num_turns > 400
    assert result.agreement >= 0.9
    assert result.kappa >= 0.8
    assert result.opposite <= 0.01


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not a labelled reaction"),
        ('{"request": "a", "reply": "b", "next": "c"}', "no 'label'"),
        ('{"request": "a", "reply": "b", "next": "c", "label": 2}', "label must be -1, 0 or 1"),
        ('{"request": "a", "reply": "b", "next": [], "label": 1}', "next must be"),
        ("", "no labelled reactions"),
    ],
)
def test_a_set_that_cannot_be_read_names_the_line(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "l.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match=problem):
        read_labelled(path)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("JUDGE_API_KEY", "OPENAI_API_KEY")}
    command = [sys.executable, "-m", "openclaw.cli", "judge", "calibrate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def test_the_command_prints_a_table_and_json(tmp_path: Path) -> None:
    done = run("--labelled", str(write(tmp_path / "l.jsonl", ROWS)), "--judge", "rule")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["num_turns"] == 5
    assert result["confusion"]["1"]["1"] == 2
    assert "kappa" in done.stderr
    assert "judged -1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--labelled", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--judge", "llm"], "--judge-url"),
        (["--jugde", "rule"], "did you mean --judge"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""
