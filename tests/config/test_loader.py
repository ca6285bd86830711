"""Where a value comes from, which source wins, and how mistakes are answered."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slime.config.leaves import leaves
from slime.config.loader import Resolution, load_config, resolve
from slime.errors import ConfigError, nearest


def write(directory: Path, text: str) -> Path:
    file = directory / "run.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def refusal(argv: list[str], environ: dict[str, str] | None = None, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(argv, environ or {}, prog="train", **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_nothing_said_gives_the_defaults_of_the_tree():
    resolution = resolve([], {})
    for leaf in leaves().values():
        assert getattr(getattr(resolution.config, leaf.section), leaf.name) == leaf.default
        assert resolution.origins[leaf.path] == "default"
    assert resolution.notices == ()


def test_flag_beats_variable_beats_file_beats_default(tmp_path):
    file = write(tmp_path, "trainer: {lr: 1e-3, weight_decay: 0.5, clip_grad: 7}\n")
    environ = {"LEARNING_RATE": "1e-4", "OPENCLAW_RL_WEIGHT_DECAY": "0.4"}
    resolution = resolve(["--config", str(file), "--lr", "1e-5"], environ)
    trainer = resolution.config.trainer
    assert (trainer.lr, trainer.weight_decay, trainer.clip_grad, trainer.adam_beta1) == (1e-5, 0.4, 7.0, 0.9)
    assert [resolution.origins[f"trainer.{name}"] for name in ("lr", "weight_decay", "clip_grad", "adam_beta1")] == [
        "--lr",
        "OPENCLAW_RL_WEIGHT_DECAY",
        f"{file}:1: trainer.clip_grad",
        "default",
    ]


def test_a_program_may_bring_its_own_defaults(tmp_path):
    file = write(tmp_path, "rollout: {max_staleness: 9}\n")
    own = {"trainer.lr": 2e-3, "rollout.max_staleness": 2}
    resolution = resolve(["--config", str(file)], {}, prog="demo", defaults=own)
    assert resolution.config.trainer.lr == 2e-3
    assert resolution.origins["trainer.lr"] == "default of demo"
    assert resolution.config.rollout.max_staleness == 9


def test_published_variables_are_read_and_an_empty_one_counts_as_unset():
    environ = {"BASE_MODEL_PATH": "/m", "MODEL_PATH": "", "OPENCLAW_PORT": "9", "ROLLOUT_LOG_LEVEL": "DEBUG"}
    config = resolve([], environ).config
    assert (config.model.model_path, config.server.port, config.server.log_level) == ("/m", 9, "debug")


def test_two_variables_for_one_setting_the_first_wins_and_it_is_said():
    resolution = resolve([], {"MODEL_PATH": "/a", "BASE_MODEL_PATH": "/b"})
    assert resolution.config.model.model_path == "/a"
    assert resolution.notices == ("BASE_MODEL_PATH is overridden by MODEL_PATH",)


@pytest.mark.parametrize("word", ["true", "1", "yes", "on", "True"])
def test_words_for_yes(word):
    assert resolve([], {"OPENCLAW_DEBUG": word}).config.server.debug is True
    assert resolve([f"--debug={word}"], {}).config.server.debug is True


@pytest.mark.parametrize("word", ["false", "0", "no", "off"])
def test_words_for_no(word):
    assert resolve([], {"USE_WANDB": word}).config.monitor.use_wandb is False


def test_switches_stand_alone_and_the_last_one_counts():
    assert resolve(["--enable-rl-intercept"], {}).config.server.enable_rl_intercept is True
    assert resolve(["--debug", "--no-debug"], {}).config.server.debug is False
    assert resolve(["--port", "1", "--port", "2"], {}).config.server.port == 2


def test_gpu_lists_and_a_judge_model_make_other_settings_plain():
    resolution = resolve(["--judge-model-path", "/j"], {"TRAIN_GPUS": "0,1,2,3", "ROLLOUT_GPUS": "4,5"})
    assert (resolution.config.cluster.num_train_ranks, resolution.config.cluster.num_engines) == (4, 2)
    assert resolution.config.judge.judge == "llm"
    assert resolution.origins["judge.judge"] == "follows from --judge-model-path"
    assert resolve(["--num-engines", "1"], {"ROLLOUT_GPUS": "4,5"}).config.cluster.num_engines == 1
    assert resolve(["--judge-model-path", "/j", "--custom-rm-path", "rm.py"], {}).config.judge.judge == "rule"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--model-pth", "x"], "unknown flag --model-pth; did you mean --model-path?"),
        (["--zzzz"], "unknown flag --zzzz; see --help"),
        (["--lr", "fast"], "--lr: 'fast' is not a number ≥ 0"),
        (["--port", "70000"], "--port: '70000' is out of bounds; give an integer ≥ 0 and ≤ 65535"),
        (["--port", "8.5"], "--port: '8.5' is not an integer ≥ 0 and ≤ 65535"),
        (["--lr", "nan"], "--lr: 'nan' is out of bounds; give a number ≥ 0"),
        (["--backend", "sglnag"], "--backend: 'sglnag' is not one of embedded, sglang, scripted; did you mean sglang?"),
        (["--backend", "vllm"], "--backend: the vLLM backend is not built yet; use embedded or sglang"),
        (["--debug=perhaps"], "--debug: 'perhaps' is not yes or no; write true or false"),
        (["--lr"], "--lr: expected one argument"),
        (["stray"], "unexpected argument 'stray'; every setting is a --flag"),
        (["--max-stale", "3"], "unknown flag --max-stale; did you mean --max-staleness?"),
    ],
)
def test_mistakes_in_flags_name_the_place_and_the_way_out(argv, expected):
    assert refusal(argv) == expected


def test_mistakes_in_variables():
    assert refusal([], {"OPENCLAW_RL_MAX_STALENES": "3"}) == (
        "unknown variable OPENCLAW_RL_MAX_STALENES; did you mean OPENCLAW_RL_MAX_STALENESS?"
    )
    assert refusal([], {"MAJORITY_VOTE_N": "many"}) == "MAJORITY_VOTE_N: 'many' is not an integer ≥ 1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rollout:\n  max_stalenes: 3\n", ":2: unknown key rollout.max_stalenes; did you mean max_staleness?"),
        ("rolout:\n  max_staleness: 3\n", ":2: unknown section rolout; did you mean rollout?"),
        ("rollout:\n  lr: 3\n", ":2: unknown key rollout.lr; lr stands under trainer"),
        ("max_staleness: 3\n", ":1: unknown section max_staleness"),
        ("trainer:\n  lr:\n", ":2: trainer.lr has no value; write one or leave the line out"),
        ("trainer:\n  lr: 1\n  lr: 2\n", ":3: trainer.lr is written twice"),
        ("trainer:\n  lr: fast\n", ":2: trainer.lr: 'fast' is not a number ≥ 0"),
        ("trainer: [\n", ":2: not YAML: expected the node content, but found '<stream end>'"),
        ("- 1\n", ":1: a settings file holds sections, e.g. `rollout:` with `max_staleness: 4` under it"),
    ],
)
def test_mistakes_in_the_file_name_the_line(tmp_path, text, expected):
    file = write(tmp_path, text)
    assert refusal(["--config", str(file)]) == f"{file}{expected}"


def test_a_missing_file_is_said():
    assert refusal(["--config", "no/such.yaml"]) == "cannot read --config no/such.yaml: No such file or directory"


def test_a_program_has_only_its_sections(tmp_path):
    sections = ("server", "model")
    assert refusal(["--lr", "1"], sections=sections) == "--lr sets trainer.lr, and train has only model, server"
    file = write(tmp_path, "server: {port: 1}\ntrainer: {lr: 3}\n")
    resolution = resolve(["--config", str(file)], {"LEARNING_RATE": "5"}, sections=sections)
    assert resolution.config.server.port == 1
    assert resolution.config.trainer.lr == 1e-6  # another program's business
    assert resolution.sections == ("model", "server")
    bad = write(tmp_path, "trainer: {lr: fast}\n")  # … but a shared file is checked whole
    assert "is not a number" in refusal(["--config", str(bad)], sections=sections)


def test_print_config_masks_secrets_and_reads_back(tmp_path, capsys):
    argv = [
        "--print-config",
        "--api-key",
        "hush",
        "--lr",
        "2e-5",
        "--adam-eps",
        "1e-9",
        "--use-wandb",
        "--run-name",
        "a #b",
    ]
    with pytest.raises(SystemExit) as caught:
        load_config(argv, {"TRAIN_GPUS": "0,1"}, prog="train")
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "hush" not in shown
    assert "********" in shown
    again = resolve(["--config", str(write(tmp_path, shown))], {}).config
    before = resolve(argv[1:], {"TRAIN_GPUS": "0,1"}, cwd=Path.cwd()).config
    assert again == dataclasses.replace(before, server=dataclasses.replace(before.server, api_key=""))


def test_a_mistake_costs_one_line_on_stderr_and_exit_code_2(capsys):
    with pytest.raises(SystemExit) as caught:
        load_config(["--model-pth", "x"], {}, prog="train")
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "train: error: unknown flag --model-pth; did you mean --model-path?\n"


def test_help_is_grouped_by_section_and_holds_every_flag(capsys):
    with pytest.raises(SystemExit) as caught:
        load_config(["--help"], {}, prog="train")
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for leaf in leaves().values():
        assert leaf.flag in shown
        assert f"\n{leaf.section}:\n" in shown


def test_names_are_unique_so_that_flags_can_be_flat():
    names = [leaf.name for leaf in leaves().values()]
    assert len(names) == len(set(names))
    variables = [name for leaf in leaves().values() for name in leaf.env]
    assert len(variables) == len(set(variables))


def _texts(leaf) -> st.SearchStrategy[str]:
    if leaf.choices:
        return st.sampled_from(leaf.choices)
    low = leaf.bounds.get("ge", leaf.bounds.get("gt", 0))
    high = leaf.bounds.get("le", leaf.bounds.get("lt", 10_000))
    if leaf.type is bool:
        return st.sampled_from(["true", "false"])
    if leaf.type is int:
        return st.integers(int(low), int(high)).map(str)
    if leaf.type is float:
        return st.floats(low, high, exclude_min="gt" in leaf.bounds, exclude_max="lt" in leaf.bounds).map(repr)
    return st.text("abcdefgh/_", min_size=1)


@given(st.data())
def test_every_leaf_means_the_same_by_flag_variable_and_file(tmp_path_factory, data):
    leaf = data.draw(st.sampled_from(list(leaves().values())))
    text = data.draw(_texts(leaf))
    file = write(tmp_path_factory.mktemp("leaf"), f"{leaf.section}:\n  {leaf.name}: {text}\n")

    def value(resolution: Resolution) -> object:
        return getattr(getattr(resolution.config, leaf.section), leaf.name)

    by_flag = value(resolve([f"{leaf.flag}={text}"], {}))
    assert by_flag == value(resolve([], {leaf.env[-1]: text})) == value(resolve([], {leaf.env[0]: text}))
    assert by_flag == value(resolve(["--config", str(file)], {}))


def test_the_nearest_of_a_word_of_megabytes_is_found_at_once() -> None:
    started = time.process_time()
    assert nearest("abcdefgh" * 600_000, ["system", "user"]) == ""
    assert time.process_time() - started < 0.2
    assert nearest("--model-pth", ["--model-path", "--port"]) == "; did you mean --model-path?"
