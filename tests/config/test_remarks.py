"""A setting that has no effect in this run is named; one that has is not."""

from __future__ import annotations

import pytest
from slime.config.leaves import leaves
from slime.config.loader import load_config, resolve

CONDITIONED = [leaf for leaf in leaves().values() if leaf.needs]


def idle(argv: list[str], environ: dict[str, str] | None = None) -> str:
    said = [notice for notice in resolve(argv, environ or {}).notices if notice.startswith("no effect in this run: ")]
    assert len(said) <= 1
    return said[0].removeprefix("no effect in this run: ") if said else ""


@pytest.mark.parametrize("leaf", CONDITIONED, ids=lambda leaf: leaf.name)
def test_a_setting_is_named_exactly_where_what_it_needs_is_not_there(leaf):
    value = str(leaf.default) if leaf.default != "" else "x"
    resolution = resolve([f"{leaf.flag}={value}"], {})
    is_named = any(leaf.flag in notice for notice in resolution.notices if notice.startswith("no effect"))
    assert is_named is not leaf.needs.holds(resolution.config)
    assert (f"no effect: needs {leaf.needs.needs}" in resolution.as_yaml()) is is_named


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--lambd", "0.9", "--value-clip", "0.1"], "--lambd, --value-clip (need --advantage-estimator ppo)"),
        (["--lambd", "0.9", "--advantage-estimator", "ppo"], ""),
        (["--judge-model", "gpt-4"], "--judge-model (needs --judge-url)"),
        (["--judge-model", "gpt-4", "--judge-url", "http://127.0.0.1:1/v1"], ""),
        (["--majority-vote-n", "5"], "--majority-vote-n (needs --judge llm)"),
        (["--majority-vote-n", "5", "--judge", "llm"], ""),
        (
            ["--majority-vote-n", "5", "--judge", "llm", "--custom-rm-path", "r.py"],
            "--majority-vote-n (needs --judge llm)",
        ),
        (["--majority-vote-n", "5", "--method", "opd", "--hint-source", "llm"], ""),
        (["--w-rl", "2"], "--w-rl (needs the loss of openclaw-combine)"),
        (["--w-rl", "2", "--method", "opd"], "--w-rl (needs the loss of openclaw-combine)"),
        (["--w-opd", "2", "--method", "opd"], ""),
        (["--w-rl", "2", "--method", "combine"], ""),
        (["--w-rl", "2", "--custom-loss-function-path", "/x/openclaw-combine/custom_loss.py"], ""),
        (["--w-rl", "2", "--custom-loss-function-path", "my/loss.py"], ""),  # it may read any setting
        (["--offload-optimizer-state"], "--offload-optimizer-state (needs --train-gpus)"),
        (["--n-samples-per-prompt", "4"], "--n-samples-per-prompt (needs --prompt-data: people get one reply)"),
        (["--prompt-data", "p.jsonl", "--n-samples-per-prompt", "4"], ""),
        (["--data-path", "t.jsonl", "--port", "81"], "--port (needs a run that serves, without --data-path)"),
        ([], ""),
    ],
)
def test_what_is_named_of_a_run(argv, named):
    assert idle(argv) == named


def test_variables_and_keys_are_named_as_they_were_written(tmp_path):
    assert idle([], {"MAJORITY_VOTE_N": "5"}) == "MAJORITY_VOTE_N (needs --judge llm)"
    file = tmp_path / "c.yaml"
    file.write_text("training:\n  gae_lambda: 0.95\n")
    assert idle(["--config", str(file)]) == f"{file}:2: training.gae_lambda (needs --advantage-estimator ppo)"


def test_it_is_told_at_the_start_and_with_print_config(capsys):
    load_config(["--lambd", "0.9"], {}, prog="train")
    assert capsys.readouterr().err == "train: note: no effect in this run: --lambd (needs --advantage-estimator ppo)\n"
    with pytest.raises(SystemExit):
        load_config(["--lambd", "0.9", "--print-config"], {}, prog="train")
    assert "no effect in this run: --lambd" in capsys.readouterr().err


def test_a_key_of_weights_and_biases_alone_is_answered():
    (notice,) = resolve([], {"WANDB_API_KEY": "hush"}).notices
    assert notice.startswith("WANDB_API_KEY: nothing is sent to Weights & Biases without --use-wandb")
    (notice,) = resolve(["--use-wandb"], {"WANDB_API_KEY": "hush"}).notices
    assert "WANDB_MODE=online sends it" in notice
    assert resolve(["--use-wandb"], {"WANDB_API_KEY": "hush", "WANDB_MODE": "online"}).notices == ()
    assert resolve([], {"WANDB_API_KEY": "hush"}, sections=["model", "server"]).notices == ()


def test_a_run_on_recorded_conversations_says_that_it_serves_nobody():
    (notice,) = resolve([], {"DATA_PATH": "talks.jsonl"}).notices
    assert notice.startswith("DATA_PATH: trains on what is recorded there and ends, and serves nobody")
