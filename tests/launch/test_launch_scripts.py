"""Every launch script, as far as a machine without a GPU goes: what it tells a run, asked with --print-config."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import yaml
from slime.config.aliases import ALIASES
from slime.config.checks import startup
from slime.config.leaves import leaves
from slime.config.loader import resolve
from slime.errors import ConfigError

from slime import preflight

ROOT = Path(__file__).resolve().parents[2]
METHODS = {"openclaw-rl": "rl", "openclaw-opd": "opd", "openclaw-combine": "combine"}
SCRIPTS = sorted(str(path.relative_to(ROOT)) for folder in METHODS for path in (ROOT / folder).glob("run_*.sh"))
PUBLISHED = [
    "openclaw-rl/run_qwen3_7b_openclaw_rl.sh",
    "openclaw-rl/run_qwen3_7b_lora_openclaw_rl.sh",
    "openclaw-rl/run_binary_rl.sh",
    "openclaw-opd/run_qwen3_7b_openclaw_opd.sh",
    "openclaw-opd/run_opd_training.sh",
    "openclaw-combine/run_qwen3_7b_openclaw_combine.sh",
    "openclaw-combine/run_combine_training.sh",
]
VARIANTS = [f"{size}{lora}" for size in ("tiny", "qwen3_4b", "qwen3_7b", "qwen3_8b") for lora in ("", "_lora")]


def ask(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script from another folder, in an environment that says nothing but what is given."""
    said = {name for leaf in leaves().values() for name in leaf.env} | {name for _, name in ALIASES}
    environ = {name: value for name, value in os.environ.items() if name not in said and not name.endswith("_ARGS")}
    environ |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | variables
    command = ["bash", str(ROOT / script), *arguments]
    return subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, timeout=60, check=False)


def resolved(script: str, *arguments: str, **variables: str) -> dict[str, dict[str, object]]:
    """What a launch script tells the run: `{"trainer": {"lr": 1e-06, …}, …}`."""
    done = ask(script, "--print-config", *arguments, **variables)
    assert done.returncode == 0, done.stderr
    told = yaml.safe_load(done.stdout)
    return {section: settings or {} for section, settings in told.items()}


@cache
def as_it_stands(script: str) -> dict[str, dict[str, object]]:
    return resolved(script)


def code_of(script: str) -> list[str]:
    lines = (ROOT / script).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("script", PUBLISHED)
def test_published_names_are_there(script: str):
    assert script in SCRIPTS


@pytest.mark.parametrize("folder", METHODS)
def test_every_method_has_every_variant(folder: str):
    assert {f"{folder}/run_{variant}_openclaw_{METHODS[folder]}.sh" for variant in VARIANTS} <= set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_trains_its_folders_method_on_the_model_it_is_named_after(script: str):
    told = as_it_stands(script)
    folder, name = script.split("/")
    assert told["plugin"]["custom_loss_function_path"] == str(ROOT / folder / "custom_loss.py")
    assert told["plugin"]["rollout_function_path"] == str(ROOT / folder / "custom_rollout.py")
    assert told["server"]["enable_rl_intercept"] is True
    if "tiny" in name:
        assert told["model"]["model_path"] == str(ROOT / "runs/tiny-model")
        assert told["cluster"]["train_gpus"] == ""
    else:
        size = "4B" if "_4b_" in name else "8B"
        assert told["model"]["model_path"] == f"Qwen/Qwen3-{size}"
        assert (told["cluster"]["num_engines"], told["cluster"]["num_train_ranks"]) == (4, 4)
        assert told["engine"]["backend"] == "sglang"
    assert told["lora"]["use_lora"] is ("_lora_" in name)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_says_only_what_is_its_own(script: str):
    """Set, then one line that sources what is shared and one that calls it, or one that names another script."""
    strict, *own = code_of(script)
    assert strict == "set -euo pipefail"
    assert len(own) <= 2
    assert own[-1].endswith('"$@"')
    if len(own) == 2:
        twins = [
            other for other in SCRIPTS if other.split("/")[0] == script.split("/")[0] and code_of(other)[1:] == own
        ]
        assert twins == [script], "one of them can name the other"


def test_runs_of_different_scripts_write_to_different_places():
    places: dict[object, str] = {}
    for script in SCRIPTS:
        if len(code_of(script)) == 3:
            place = as_it_stands(script)["checkpoint"]["save_dir"]
            assert place not in places, f"{script} and {places[place]}"
            places[place] = script


@pytest.mark.parametrize("script", ["openclaw-rl/run_tiny_openclaw_rl.sh", "openclaw-rl/run_qwen3_7b_openclaw_rl.sh"])
def test_arrays_come_from_the_environment_and_flags_from_behind(script: str):
    told = resolved(
        script,
        "--port",
        "8123",
        "--run-name",
        "two words",
        MODEL_PATH="/models/mine",
        CKPT_ARGS="--save-interval 7",
        ROLLOUT_ARGS="\n --rollout-batch-size 64 \n --num-rollouts-per-prompt 4",
        REWARD_ARGS="--judge rule --majority-vote-n 9",
        OPTIMIZER_ARGS="--lr 5e-7",
    )
    assert told["model"]["model_path"] == "/models/mine"
    assert (told["server"]["port"], told["monitor"]["run_name"]) == (8123, "two words")
    assert told["checkpoint"]["save_interval"] == 7
    assert (told["rollout"]["rollout_batch_size"], told["rollout"]["num_rollouts_per_prompt"]) == (64, 4)
    assert (told["judge"]["judge"], told["judge"]["majority_vote_n"]) == ("rule", 9)
    assert float(str(told["trainer"]["lr"])) == 5e-7


def test_a_flag_behind_the_command_beats_its_array():
    told = resolved("openclaw-rl/run_qwen3_7b_openclaw_rl.sh", "--lr", "3e-6", OPTIMIZER_ARGS="--lr 5e-7")
    assert float(str(told["trainer"]["lr"])) == 3e-6


def test_published_variables_are_not_drowned_by_a_scripts_defaults():
    told = resolved(
        "openclaw-rl/run_qwen3_7b_openclaw_rl.sh",
        BASE_MODEL_PATH="/models/mine",
        LEARNING_RATE="2e-6",
        BATCH_SIZE="8",
        GRAD_ACCUM_STEPS="4",
        CKPT_SAVE_DIR="/ckpt",
        TRAIN_GPUS="0,1",
        ROLLOUT_GPUS="2,3",
        JUDGE_MODEL_PATH="/models/judge",
        MAJORITY_VOTE_N="5",
    )
    assert told["model"]["model_path"] == "/models/mine"
    assert float(str(told["trainer"]["lr"])) == 2e-6
    assert told["rollout"]["rollout_batch_size"] == 32
    assert told["checkpoint"]["save_dir"] == "/ckpt"
    assert (told["cluster"]["train_gpus"], told["cluster"]["rollout_gpus"]) == ("0,1", "2,3")
    assert (told["cluster"]["num_train_ranks"], told["cluster"]["num_engines"]) == (2, 2)
    assert (told["judge"]["judge_model_path"], told["judge"]["majority_vote_n"]) == ("/models/judge", 5)


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["--lora"], {}),
        (["--use-lora"], {}),
        (["--use-lora=yes"], {}),
        ([], {"USE_LORA": "true"}),
        ([], {"USE_LORA": "TRUE"}),
        ([], {"USE_LORA": "ON"}),
        ([], {"USE_LORA": "y"}),
        ([], {"OPENCLAW_RL_USE_LORA": "1"}),
        ([], {"LORA_ARGS": "--use-lora --lora-rank 64 --lora-alpha 128"}),
        ([], {"OPTIMIZER_ARGS": "--use-lora"}),
    ],
)
def test_the_rate_and_the_folder_of_an_adapter_follow_wherever_it_is_asked_for(
    arguments: list[str], variables: dict[str, str]
):
    script = "openclaw-combine/run_combine_training.sh"
    told = resolved(script, *arguments, **variables)
    assert told["lora"]["use_lora"] is True
    assert told["checkpoint"]["save_dir"] == "/checkpoints/qwen3-8b-openclaw-combine-lora"
    if "OPTIMIZER_ARGS" not in variables:  # whoever writes that array writes the rate
        assert float(str(told["trainer"]["lr"])) == 1e-5
    if "LORA_ARGS" in variables:
        assert (told["lora"]["lora_rank"], told["lora"]["lora_alpha"]) == (64, 128)


def test_an_adapter_that_is_switched_off_is_not_trained():
    told = resolved("openclaw-rl/run_qwen3_7b_lora_openclaw_rl.sh", "--no-use-lora", USE_LORA="true")
    assert told["lora"]["use_lora"] is False
    assert float(str(told["trainer"]["lr"])) == 1e-6


def test_ranks_of_an_adapter_keep_a_lora_scripts_adapter():
    """The published array of sizes alone, beside a script that trains an adapter."""
    told = resolved("openclaw-rl/run_qwen3_7b_lora_openclaw_rl.sh", LORA_ARGS="--lora-rank 64 --lora-dropout 0.05")
    assert (told["lora"]["use_lora"], told["lora"]["lora_rank"]) == (True, 64)


def test_lora_arguments_replace_the_array():
    told = resolved("openclaw-rl/run_tiny_lora_openclaw_rl.sh", LORA_ARGS="--use-lora --lora-rank 2 --lora-alpha 3")
    assert (told["lora"]["lora_rank"], told["lora"]["lora_alpha"]) == (2, 3.0)


def test_a_mistake_in_an_array_is_one_line():
    done = ask("openclaw-rl/run_qwen3_7b_openclaw_rl.sh", OPTIMIZER_ARGS="--learnin-rate 1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "unknown flag --learnin-rate" in done.stderr


COMPARING = [
    *(["--advantage-estimator", name] for name in ("grpo", "dr_grpo", "gspo", "cispo", "rloo")),
    ["--advantage-estimator", "reinforce_plus_plus_baseline"],
    ["--baseline", "group"],
]
GROUPING = "async def generate_rollout(store):\n    yield\n\n\ngenerate_rollout.gives_groups = True\n"


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., preflight.Plan]:
    """What a run says of its settings before it starts, on whichever model."""
    monkeypatch.setattr(startup, "check_model_dir", lambda model_dir: None)

    def checked(*flags: str) -> preflight.Plan:
        here = ["--device", "cpu", "--run-dir", str(tmp_path), "--save-dir", str(tmp_path)]
        return preflight.check(resolve([*flags, *here], {}).config)

    return checked


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_script_compares_replies_that_people_get_only_one_of(script: str, check: Callable[..., preflight.Plan]):
    plugin = as_it_stands(script)["plugin"]
    paths = ["custom_loss_function_path", "rollout_function_path"]
    own = [word for name in paths for word in (f"--{name.replace('_', '-')}", str(plugin[name]))]
    assert check(*own).rollout.is_endless
    for flags in COMPARING:
        with pytest.raises(
            ConfigError, match=f"^{' '.join(flags)} compares replies to one prompt, and people get only"
        ):
            check(*own, *flags)


@pytest.mark.parametrize(
    "method", [["--method", "binary"], ["--method", "opd"], ["--method", "combine"], [], ["--data-path", "{sessions}"]]
)
def test_no_method_compares_replies_that_people_get_only_one_of(
    method: list[str], check: Callable[..., preflight.Plan], tmp_path: Path
):
    (tmp_path / "sessions.jsonl").write_text("{}\n")
    named = [word.format(sessions=tmp_path / "sessions.jsonl") for word in method]
    check(*named)
    for flags in COMPARING:
        with pytest.raises(ConfigError, match="compares replies to one prompt, and people get only one"):
            check(*named, *flags)


def test_a_rollout_of_groups_says_so_and_may_compare_them(check: Callable[..., preflight.Plan], tmp_path: Path):
    file = tmp_path / "custom_rollout.py"
    file.write_text(GROUPING)
    assert check("--rollout-function-path", str(file), "--advantage-estimator", "grpo").rollout.is_endless
    file = tmp_path / "other_rollout.py"
    file.write_text(GROUPING.replace("True", "False"))
    with pytest.raises(ConfigError, match="compares replies"):
        check("--rollout-function-path", str(file), "--advantage-estimator", "grpo")
