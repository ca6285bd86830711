"""What became of the spellings on the published pages."""

from __future__ import annotations

import pytest
from slime.config.aliases import ALIASES
from slime.config.leaves import leaves
from slime.config.loader import resolve
from slime.errors import ConfigError

PUBLISHED_YAML = """\
model:
  name: qwen3.5-4b
  checkpoint_path: /m
  tokenizer_path: /m
training:
  method: binary
  batch_size: 32
  gradient_accumulation_steps: 4
  learning_rate: 1e-6
  warmup_steps: 100
  max_steps: 10000
  ppo_clip_ratio: 0.1
rollout:
  num_workers: 4
  session_aware: true
evaluation:
  judge_model: /j
  majority_voting: true
  num_judges: 3
  consensus_threshold: 0.6
"""


def test_the_published_yaml_file_for_binary_rl(tmp_path):
    file = tmp_path / "training_config.yaml"
    file.write_text(PUBLISHED_YAML)
    resolution = resolve(["--config", str(file)], {})
    config = resolution.config
    assert (config.model.model_path, config.model.served_model_name) == ("/m", "qwen3.5-4b")
    assert (config.rollout.rollout_batch_size, config.rollout.num_rollout) == (128, 10000)
    assert (config.trainer.lr, config.trainer.lr_warmup_steps) == (1e-6, 100)
    assert (config.loss.eps_clip, config.loss.eps_clip_high) == (0.1, 0.1)
    judge = config.judge
    assert (judge.judge, judge.judge_model_path, judge.majority_vote_n, judge.majority_vote_threshold) == (
        "llm",
        "/j",
        3,
        0.6,
    )
    assert judge.num_judge_workers == 4
    assert any(
        n.startswith(f"{file}:7: training.batch_size: taken as --rollout-batch-size 128") for n in resolution.notices
    )


def test_the_published_weights_and_hint_model_of_combine(tmp_path):
    file = tmp_path / "c.yaml"
    said = "method: combine, binary_weight: 0.25, opd_weight: 2, hint_extraction_model: /h, teacher_temperature: 1"
    file.write_text(f"training: {{{said}}}")
    config = resolve(["--config", str(file)], {}).config
    assert (config.loss.w_rl, config.loss.w_opd) == (0.25, 2.0)
    assert (config.judge.judge, config.teacher.hint_source, config.judge.judge_model_path) == ("llm", "auto", "/h")
    assert config.plugin.rollout_function_path == "openclaw_combine.custom_rollout"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("training: {method: combined}", "'combined' is not one of binary, opd, combine; did you mean combine?"),
        ("training: {teacher_temperature: 2}", "a teacher is asked for its own distribution"),
        ("training: {gradient_accumulation_steps: 4}", "needs training.batch_size beside it"),
        ("rollout: {session_aware: false}", "turns are always kept by session"),
        ("model: {checkpoint_path: /m, tokenizer_path: /t}", "the tokenizer is read from the model directory"),
        ("plugin: {custom_rm_pat: x}", "did you mean custom_rm_path?"),
    ],
)
def test_published_keys_that_cannot_be_had_are_refused_in_one_line(tmp_path, line, words):
    file = tmp_path / "c.yaml"
    file.write_text(line + "\n")
    with pytest.raises(ConfigError, match=r"^\S+c\.yaml:1: ") as caught:
        resolve(["--config", str(file)], {})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "path", "value"),
    [
        (["--n-samples-per-prompt", "4"], "rollout.num_rollouts_per_prompt", 4),
        (["--ppo-clip-ratio", "0.1"], "loss.eps_clip_high", 0.1),
        (["--clip-range=0.1"], "loss.eps_clip", 0.1),
        (["--rm-checkpoint", "/rm"], "judge.judge_model_path", "/rm"),
        (["--rm-checkpoint", "/rm"], "judge.judge", "llm"),
        (["--num-judges", "5"], "judge.majority_vote_n", 5),
        (["--num-rollout-workers", "16"], "judge.num_judge_workers", 16),
        (["--lr-warmup-samples", "100", "--rollout-batch-size", "32"], "trainer.lr_warmup_steps", 4),
        (["--hf-checkpoint", "/m"], "model.model_path", "/m"),
        (["--use-tis"], "loss.behaviour_correction", "decoupled"),
        (["--disable-grpo-std-normalization"], "loss.grpo_std_normalization", False),
        (["--disable-rewards-normalization"], "loss.rewards_normalization", False),
    ],
)
def test_published_flags_become_ours_and_say_so(argv, path, value):
    resolution = resolve(argv, {})
    section, _, name = path.partition(".")
    assert getattr(getattr(resolution.config, section), name) == value
    assert [notice for notice in resolution.notices if notice.startswith(argv[0].partition("=")[0] + ": taken as ")]


def test_our_own_spelling_beats_a_published_one_and_it_is_said():
    resolution = resolve(["--clip-range", "0.1", "--eps-clip-high", "0.3"], {})
    assert (resolution.config.loss.eps_clip, resolution.config.loss.eps_clip_high) == (0.1, 0.3)
    assert "--clip-range is overridden by --eps-clip-high" in resolution.notices


def test_a_published_variable_that_a_flag_beats_is_not_said_to_be_taken():
    resolution = resolve(["--rollout-batch-size", "16"], {"BATCH_SIZE": "8"})
    assert resolution.config.rollout.rollout_batch_size == 16
    assert resolution.notices == ("BATCH_SIZE is overridden by --rollout-batch-size",)
    (notice,) = resolve(["--rollout-batch-size", "8"], {"BATCH_SIZE": "8"}).notices
    assert notice == "BATCH_SIZE: taken as --rollout-batch-size 8"


def test_what_is_so_in_any_case_passes_with_a_notice():
    argv = ["--reward-aggregation", "majority", "--async-collection", "--num-epochs", "1"]
    resolution = resolve(argv, {})
    assert len(resolution.notices) == 3
    with pytest.raises(ConfigError, match="--reward-aggregation: 'mean' cannot be had"):
        resolve(["--reward-aggregation", "mean"], {})


@pytest.mark.parametrize("flag", ["--max-turns", "--parallel-envs"])
def test_flags_of_agent_tracks_are_remarked_on_and_stop_nothing(flag):
    (notice,) = resolve([flag, "4"], {}).notices
    assert notice.startswith(f"{flag}: 4 is for agent tracks")


def test_every_mistake_of_a_file_is_told_at_once(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("trainer: {lr: fast, lrr: 1}\nrollout: {session_aware: false}\nmodle: {name: x}\n")
    with pytest.raises(ConfigError) as caught:
        resolve(["--config", str(file)], {})
    assert [line.partition(" ")[0] for line in str(caught.value).splitlines()] == [f"{file}:{n}:" for n in (1, 3, 1, 2)]


def test_what_a_start_would_refuse_is_shown_and_told_by_print_config(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("model: {checkpoint_path: /m, tokenizer_path: /t}\n")
    resolution = resolve(["--config", str(file), "--print-config"], {})
    assert resolution.config.model.model_path == "/m"
    assert [refusal.partition(" the ")[0] for refusal in resolution.refusals] == [f"{file}:1: model.tokenizer_path:"]


def test_a_tokenizer_that_is_the_models_own_is_accepted(tmp_path):
    for name in ("model", "tokenizer", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text("other" if name == "other" else "{}")
    given = {"CKPT_PATH": str(tmp_path / "model")}
    assert resolve([], given | {"TOKENIZER_PATH": str(tmp_path / "tokenizer")}).refusals == ()
    with pytest.raises(ConfigError, match="TOKENIZER_PATH: the tokenizer is read from the model directory"):
        resolve([], given | {"TOKENIZER_PATH": str(tmp_path / "other")})


def test_batch_variables_multiply():
    assert resolve([], {"BATCH_SIZE": "8", "GRAD_ACCUM_STEPS": "8"}).config.rollout.rollout_batch_size == 64
    assert resolve(["--rollout-batch-size", "3"], {"BATCH_SIZE": "8"}).config.rollout.rollout_batch_size == 3
    with pytest.raises(ConfigError, match=r"^GRAD_ACCUM_STEPS: needs BATCH_SIZE beside it"):
        resolve([], {"GRAD_ACCUM_STEPS": "8"})
    with pytest.raises(ConfigError, match=r"^BATCH_SIZE: 'big' times"):
        resolve([], {"BATCH_SIZE": "big"})


@pytest.mark.parametrize("name", ["ENV_TYPE", "MAX_STEPS", "PARALLEL_ENVS", "TASK_TYPE"])
def test_variables_of_agent_tracks_are_remarked_on_and_stop_nothing(name):
    (notice,) = resolve([], {name: "8"}).notices
    assert notice.startswith(f"{name}: not used: agent tracks")


def test_switched_off_is_no_wish():
    assert resolve(["--max-turns", "0"], {}).notices == ()


@pytest.mark.parametrize(("written", "clip"), [("true", 0.2), ("TRUE", 0.2), ("false", 0), ("0", 0), ("0.1", 0.1)])
def test_the_published_switch_of_value_clipping_is_its_default_or_nothing(written, clip):
    resolution = resolve(["--advantage-estimator", "ppo"], {"VALUE_CLIP": written})
    assert resolution.config.loss.value_clip == clip
    assert resolution.notices[0].startswith("VALUE_CLIP: taken as --value-clip ")


def test_a_judge_is_a_directory_or_the_name_of_a_model_that_somebody_serves(tmp_path):
    for key in ("training: {hint_extraction_model", "evaluation: {judge_model"):
        (tmp_path / "c.yaml").write_text(f"{key}: gpt-4}}\n")
        judge = resolve(["--config", str(tmp_path / "c.yaml")], {}).config.judge
        assert (judge.judge, judge.judge_model, judge.judge_model_path) == ("llm", "gpt-4", "")
        (tmp_path / "c.yaml").write_text(f"{key}: ./judge}}\n")
        judge = resolve(["--config", str(tmp_path / "c.yaml")], {}).config.judge
        assert (judge.judge, judge.judge_model, judge.judge_model_path) == ("llm", "", "./judge")


def test_credentials_and_torchrun_variables_are_remarked_on_without_their_values():
    resolution = resolve([], {"TINKER_API_KEY": "hush", "MASTER_ADDR": "10.0.0.1"})
    assert len(resolution.notices) == 2
    assert "hush" not in " ".join(resolution.notices)


def test_the_server_does_not_look_at_what_concerns_training():
    assert resolve([], {"LORA_RANK": "x", "BATCH_SIZE": "x"}, sections=("model", "server")).notices == ()


def test_no_alias_shadows_a_spelling_of_ours():
    own = {leaf.flag for leaf in leaves().values()} | {name for leaf in leaves().values() for name in leaf.env}
    own |= leaves().keys()
    assert not own & {name for _, name in ALIASES}


@pytest.mark.parametrize(("name", "package"), [("binary", "openclaw_rl"), ("opd", "openclaw_opd")])
def test_a_method_is_its_loss_and_its_rollout(name: str, package: str):
    flags = ["--rollout-dir", "./rollouts", "--checkpoint-dir", "./ckpt", "--method", name, "--gpus", "2,3,4,5"]
    resolution = resolve(flags, {})
    config = resolution.config
    assert config.plugin.custom_loss_function_path == f"{package}.custom_loss"
    assert config.plugin.rollout_function_path == f"{package}.custom_rollout"
    assert (str(config.server.rl_buffer_dir), str(config.checkpoint.save_dir)) == ("rollouts", "ckpt")
    assert (config.cluster.train_gpus, config.cluster.num_train_ranks) == ("2,3,4,5", 4)
    assert resolution.notices[-1] == "--gpus: taken as --train-gpus 2,3,4,5"


def test_a_run_on_recorded_conversations_serves_nobody_and_has_a_store_of_its_own():
    config = resolve(["--run-dir", "/run"], {"DATA_PATH": "talks.jsonl"}).config
    assert (config.rollout.data_path, config.cluster.serve) == ("talks.jsonl", False)
    assert str(config.server.rl_buffer_dir) == "/run/conversations"
    assert config.rollout.max_staleness > 100_000
    said = resolve(["--data-path", "t.jsonl", "--max-staleness", "3", "--rl-buffer-dir", "mine"], {}).config
    assert (said.rollout.max_staleness, str(said.server.rl_buffer_dir)) == (3, "mine")
