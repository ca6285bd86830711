"""`run_eval.sh` from the command line: on a scripted engine quickly, and on a tiny model that was taught something."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from openclaw_test.checkpoints import weights_dir, whole_model
from openclaw_test.evaluate import label, main
from openclaw_test.people.personas import personas
from openclaw_test.people.problems import random_problem
from openclaw_test.people.styles import Style, write_reply
from openclaw_test.people.users import ScriptedUser
from openclaw_test.serving import serve_model
from openclaw_test.tiny.model import Recipe, _loss, build_tiny_model, encode
from openclaw_test.tiny.text import Conversation
from slime.config.sections import EngineConfig
from slime.errors import ConfigError
from slime.weights.adapters import Adapter, LoraShape, fingerprint, write_adapter
from slime.weights.models import read_weights
from transformers import AutoModelForCausalLM, AutoTokenizer

SMALL = Recipe(num_conversations=60, short_tokens=1_000, num_tokens=2_000, tokens_per_step=500, hidden_size=64)


def run_eval(repository: Path, *flags: str, timeout_s: float = 250) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = ["bash", str(repository / "openclaw-test/run_eval.sh"), *flags]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, env=environment, cwd="/", check=False
    )


def report(output_dir: Path) -> dict[str, Any]:
    return json.loads((output_dir / "report.json").read_text(encoding="utf-8"))


def test_a_checkpoint_is_found_by_its_own_path_or_its_weights(tmp_path: Path):
    (tmp_path / "run/checkpoint-3/weights").mkdir(parents=True)
    (tmp_path / "run/checkpoint-3/weights/config.json").write_text("{}")
    expected = (tmp_path / "run/checkpoint-3/weights").resolve()
    assert weights_dir(str(tmp_path / "run/checkpoint-3")) == weights_dir(str(expected)) == expected
    with pytest.raises(ConfigError, match="is not a model"):
        weights_dir(str(tmp_path / "run"))


def test_an_adapter_is_merged_with_the_model_it_was_trained_on(tmp_path: Path):
    base = build_tiny_model(tmp_path / "base", recipe=SMALL)
    name = "model.layers.0.self_attn.q_proj"
    weight = read_weights(base)[f"{name}.weight"]
    a, b = torch.ones(2, weight.shape[1]), torch.ones(weight.shape[0], 2)
    adapter = Adapter(LoraShape(rank=2, alpha=4, target_modules=("q_proj",)), {name: (a, b)})
    weights = tmp_path / "checkpoint/weights"
    write_adapter(adapter, weights, name="policy", version=3, base=fingerprint(base))
    with pytest.raises(ConfigError, match="is an adapter: name its base model"):
        whole_model(tmp_path / "checkpoint", None, tmp_path / "merged")
    merged = whole_model(tmp_path / "checkpoint", base, tmp_path / "merged")
    torch.testing.assert_close(read_weights(merged)[f"{name}.weight"], weight + 4.0)
    assert whole_model(base, None, tmp_path / "unused") == base.resolve()


def test_models_are_called_by_the_shortest_name_that_tells_them_apart():
    paths = ["/runs/a/checkpoint-latest", "/runs/b/checkpoint-latest", "/models/tiny"]
    assert [label(path, paths) for path in paths] == ["a/checkpoint-latest", "b/checkpoint-latest", "tiny"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model-path", "/nowhere"), "is not a model"),
        (("--base-url", "http://127.0.0.1:9/v1", "--eval-tasks", "codin"), "did you mean coding"),
        (("--base-url", "http://127.0.0.1:9/v1", "--persona", "boss"), "unknown 'boss'; choose from student"),
        ((), "--model-path or --base-url"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str):
    with pytest.raises(SystemExit) as ended:
        main([*flags, "--output-dir", str(tmp_path)])
    assert ended.value.code == 2
    complaint = capsys.readouterr().err
    assert words in complaint
    assert complaint.count("\n") == 1


@pytest.mark.slow
def test_the_whole_way_on_a_scripted_engine(repository: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    """Its replies are plain, short and unpraising, and sometimes right; it neither codes nor calls tools."""
    model = build_tiny_model(tmp_path_factory.mktemp("scripted") / "model", recipe=SMALL)
    flags = ("--backend", "scripted", "--eval-tasks", "conversation,coding,tool-use", "--min-tokens", "60")
    few = ("--sessions", "4", "--questions", "6", "--seeds", "2", "--tasks", "3")
    done = run_eval(repository, "--model-path", str(model), *flags, *few, "--output-dir", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    written = report(tmp_path / "out")
    satisfied = {row["persona"]: row["satisfaction"]["mean"] for row in written["rows"]}
    assert satisfied == {"student": 1, "ta": 0, "teacher": 0}
    sessions = {row["persona"]: (row["sessions"]["mean"], row["reached"]) for row in written["rows"]}
    assert sessions == {"student": (3, 2), "ta": (4, 0), "teacher": (4, 0)}
    [suites] = written["suites"].values()
    assert [(score["suite"], score["passed"]["mean"]) for score in suites] == [("coding", 0), ("tool-use", 0)]
    assert all("solves none of 3" in score["note"] for score in suites)
    assert (tmp_path / "out/curves.png").stat().st_size > 10_000
    assert "student" in (tmp_path / "out/table.txt").read_text(encoding="utf-8")
    assert "student" in done.stdout


@pytest.mark.slow
async def test_a_running_server_is_evaluated_without_its_files(tmp_path: Path):
    model = build_tiny_model(tmp_path / "model", recipe=SMALL)
    flags = ["--persona", "student", "--sessions", "3", "--questions", "4", "--seeds", "1"]
    async with serve_model(model, tmp_path / "logs", EngineConfig(), "scripted") as served:
        flags += ["--base-url", str(served.client.base_url), "--output-dir", str(tmp_path / "out")]
        await asyncio.to_thread(main, flags)
    [row] = report(tmp_path / "out")["rows"]
    assert (row["assistant"], row["satisfaction"]["mean"], row["failed"], row["kl"]) == ("model", 1, 0, None)


def taught(tiny_model_dir: Path, directory: Path) -> Path:
    """The tiny model after a little more supervised training: a student gets plain replies, right ones."""
    torch.manual_seed(0)
    rng = random.Random(0)
    shutil.copytree(tiny_model_dir, directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
    user = ScriptedUser("student-0", personas(34)["student"], seed=77)
    recipe = Recipe(prompt_weight=0.0, number_weight=1.0)
    for _ in range(40):
        talks = []
        for _ in range(16):
            problem = random_problem(rng, "train")
            talk = Conversation(messages=user.opening(problem))
            talk.reply(write_reply(problem, Style("plain", "neutral"), rng))
            talks.append(talk)
        optimizer.zero_grad()
        _loss(model, encode(tokenizer, talks, recipe)).backward()
        optimizer.step()
    model.save_pretrained(directory)
    return directory


def without_rounding_errors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A model's KL to itself is what float32 rounds, about 1e-13; a busy engine adds up in another order."""
    kls = [{name: round(row["kl"][name], 9) for name in ("mean", "low", "high")} for row in rows]
    return [row | {"kl": row["kl"] | kl} for row, kl in zip(rows, kls, strict=True)]


@pytest.mark.long
@pytest.mark.timeout(1800, func_only=True)
def test_a_taught_model_outranks_an_untaught_one_and_the_numbers_come_twice(
    repository: Path, tmp_path: Path, tiny_model_dir: Path
):
    models = [str(tiny_model_dir), str(taught(tiny_model_dir, tmp_path / "taught"))]
    flags = ("--persona", "student", "--sessions", "8", "--seeds", "1", "--questions", "50")
    flags = ("--model-path", *models, "--base-model", str(tiny_model_dir), *flags)
    written = []
    for number in range(2):
        done = run_eval(repository, *flags, "--output-dir", str(tmp_path / str(number)))
        assert done.returncode == 0, done.stderr
        written.append(report(tmp_path / str(number)))
    once, again = (without_rounding_errors(said["rows"]) for said in written)
    assert once == again
    assert written[0]["ranking"] == ["taught", Path(models[0]).name]
    untaught, after = written[0]["rows"]
    assert untaught["satisfaction"]["mean"] <= 0.2 < 0.8 <= after["satisfaction"]["mean"]
    assert untaught["accuracy"]["mean"] >= 0.9 <= after["accuracy"]["mean"]
    assert untaught["reached"] == 0
    assert after["reached"] == 1
    assert abs(untaught["kl"]["mean"]) < 1e-4 < 0.05 < after["kl"]["mean"]
