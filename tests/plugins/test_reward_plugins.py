"""Published reward files run as they are, a turn in and a verdict out; a plug-in that fails is no reward."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import textwrap
from pathlib import Path

import pytest
import torch
from slime.config.loader import resolve
from slime.config.sections import Config, JudgeConfig, LossConfig
from slime.errors import PluginError
from slime.judging.plugin import PluginJudge
from slime.plugins.rewards import load_reward
from slime.plugins.settings import plugin_settings
from slime.protocols import Judge
from slime.types import Completion, Turn, TurnKind, VersionSpan

PUBLISHED = Path(__file__).parent / "published"


@pytest.fixture
def turn() -> Turn:
    """The second turn of a conversation, with the reply of the person to it."""
    return Turn(
        turn_id="t2",
        session_id="s",
        parent_id="t1",
        kind=TurnKind.MAIN,
        messages=(
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "hi"},
            {"role": "user", "content": [{"type": "text", "text": "two plus two"}]},
        ),
        prompt_ids=(1, 2, 3),
        completion=Completion((4, 5), (-0.1, -0.2), "four", "stop", (VersionSpan(0, 0, 2),)),
        sampling=None,  # type: ignore[arg-type]  # no reward looks at it
        reply={"role": "assistant", "content": "four"},
        next_state=({"role": "user", "content": "thanks, perfect"},),
    )


def judge(path: object, settings: dict[str, object] | None = None, timeout_s: float = 5.0) -> PluginJudge:
    return PluginJudge(load_reward(str(path), settings or {}), timeout_s=timeout_s)


def plugin(directory: Path, source: str) -> Path:
    file = directory / "custom_rm.py"
    file.write_text(textwrap.dedent(source))
    return file


@pytest.fixture
def classifier_dir(tmp_path: Path) -> Path:
    """A tiny random sequence classifier with a tokenizer of its own, as a published reward model expects."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "Prompt", ":", "Response", "Outcome", "two", "plus", "four", "thanks", ",", "perfect"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=2,
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path / "prm")
    fast.save_pretrained(tmp_path / "prm")
    return tmp_path / "prm"


async def test_the_published_reward_model(classifier_dir, turn):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    settings = plugin_settings(
        Config(judge=JudgeConfig(prm_model_path=str(classifier_dir), judge_model_path="/models/judge"))
    )
    verdict = await PluginJudge(load_reward(f"{PUBLISHED}/custom_rm.py", settings), timeout_s=30).judge(turn)
    model = AutoModelForSequenceClassification.from_pretrained(classifier_dir, dtype=torch.bfloat16)
    text = "Prompt: two plus two\nResponse: four\nOutcome: thanks, perfect"
    inputs = AutoTokenizer.from_pretrained(classifier_dir)(text, return_tensors="pt")
    with torch.no_grad():
        expected = torch.softmax(model.eval()(**inputs).logits, -1)[0, 1].item()
    assert 0 < expected < 1
    assert verdict.score == pytest.approx(expected)
    assert verdict.judge == "plugin"


@pytest.fixture
def printed(tmp_path: Path, shared_dir: Path) -> Path:
    """custom_rm.py as its page prints it."""
    page = (shared_dir / "published/001_1a6e1522e92874f4.txt").read_text(encoding="utf-8")
    (source,) = re.findall(r"^# my_method/custom_rm\.py\n.*?return CustomPRM\(.*?\)\n", page, re.DOTALL | re.MULTILINE)
    return plugin(tmp_path, source)


async def test_the_printed_reward_model_has_its_own_path_and_the_judge_its_own(classifier_dir, printed, turn):
    environ = {"PRM_MODEL_PATH": str(classifier_dir), "JUDGE_MODEL_PATH": "/models/judge"}
    config = resolve(["--custom-rm-path", str(printed), "--judge", "llm"], environ).config
    assert (config.judge.prm_model_path, config.judge.judge_model_path) == (str(classifier_dir), "/models/judge")
    verdict = await PluginJudge(load_reward(str(printed), plugin_settings(config)), timeout_s=30).judge(turn)
    assert 0 < verdict.score < 1


def test_a_setting_has_the_names_that_published_files_read_it_by() -> None:
    judge = JudgeConfig(prm_model_path="/models/prm", judge_model_path="/models/judge")
    settings = plugin_settings(Config(judge=judge, loss=LossConfig(eps_clip=0.1, kl_loss_coef=0.2, w_rl=3, w_opd=4)))
    assert (settings["checkpoint_path"], settings["prm_model_path"]) == ("/models/prm", "/models/prm")
    assert (settings["clip_range"], settings["clip_ratio"], settings["kl_coeff"]) == (0.1, 0.1, 0.2)
    assert (settings["binary_weight"], settings["opd_weight"]) == (3, 4)


def test_the_printed_reward_model_without_a_path_is_one_line(printed):
    with pytest.raises(PluginError) as raised:
        load_reward(str(printed), plugin_settings(Config()))
    line = str(raised.value)
    assert line.endswith("needs a reward model; give --prm-model-path or PRM_MODEL_PATH")
    assert "\n" not in line


async def test_the_published_reward_class(tmp_path, turn):
    (tmp_path / "words.json").write_text(json.dumps({"thanks,": 1.0, "perfect": 0.5, "wrong": -1.0}))
    verdict = await judge(f"{PUBLISHED}/custom_reward.py", {"prm_model_path": str(tmp_path)}).judge(turn)
    assert verdict.score == 1.5


async def test_a_class_that_only_knows_batches(tmp_path, turn):
    file = plugin(
        tmp_path,
        """
        import torch

        class CustomRewardModel:
            def __init__(self, checkpoint_path):
                self.bonus = len(checkpoint_path)

            def batch_compute_rewards(self, rows):
                return torch.tensor([len(row["feedback"]) + self.bonus for row in rows])
        """,
    )
    verdict = await judge(file, {"prm_model_path": "abc"}).judge(turn)
    assert verdict.score == len("thanks, perfect") + 3


@pytest.mark.parametrize(
    "source",
    [
        """
        def reward(response, next_state):
            return 1.0 if "thanks" in next_state and response == "four" else -1.0
        """,
        """
        async def reward(prompt, feedback):
            return prompt == "two plus two"
        """,
        """
        async def custom_rm(args, sample, **more):
            return {"score": float(sample.response_length - args.lag), "why": 1}
        """,
        """
        def reward(turn, messages):
            return len(messages) - 3 if turn.turn_id == "t2" else 0
        """,
    ],
)
async def test_functions_in_every_style(tmp_path, turn, source):
    verdict = await judge(plugin(tmp_path, source), {"lag": 1}).judge(turn)
    assert verdict.score == 1.0


def test_it_is_a_judge(tmp_path):
    assert isinstance(judge(plugin(tmp_path, "def reward(response): return 1.0\n")), Judge)


def test_a_reward_model_that_cannot_be_built_is_said_at_start_up(tmp_path):
    with pytest.raises(PluginError, match="needs a reward model; give --prm-model-path or PRM_MODEL_PATH"):
        judge(f"{PUBLISHED}/custom_reward.py")
    with pytest.raises(PluginError, match="needs a reward model; give --prm-model-path or PRM_MODEL_PATH"):
        judge(f"{PUBLISHED}/custom_rm.py", plugin_settings(Config()))
    file = plugin(tmp_path, "class CustomRewardModel:\n    def nothing(self): ...\n")
    with pytest.raises(PluginError, match="CustomRewardModel has none of score, compute_reward, reward"):
        judge(file)
    with pytest.raises(PluginError, match=r"asks for 'reponse'.*did you mean response"):
        judge(plugin(tmp_path / "..", "def reward(reponse): ...\n"))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return None", "ValueError: gave NoneType; a reward is one number"),
        ("return 'good'", "ValueError: gave str; a reward is one number"),
        ("return float('nan')", "ValueError: gave nan; a reward must be finite"),
        ("return 1e300", "ValueError: a score lies within ±1e+06, and this is 1e+300"),
        ("raise KeyError('x')", "KeyError: 'x'"),
    ],
)
async def test_failures_leave_the_turn_unjudged(tmp_path, turn, body, reason):
    verdict = await judge(plugin(tmp_path, f"def reward(response):\n    {body}\n")).judge(turn)
    assert (verdict.score, verdict.reason) == (None, reason)


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_a_reward_that_takes_too_long_is_unjudged(tmp_path, turn, kind):
    wait = "await asyncio.sleep(0.3)" if kind == "async def" else "time.sleep(0.3)"
    file = plugin(tmp_path, f"import asyncio, time\n\n{kind} reward(response):\n    {wait}\n    return 1.0\n")
    plugin_judge = judge(file, timeout_s=0.05)
    verdict = await plugin_judge.judge(turn)
    assert (verdict.score, verdict.reason) == (None, "no reward within 0.05 s")


async def test_three_failures_in_a_row_switch_it_off_loudly(tmp_path, turn, caplog):
    file = plugin(
        tmp_path,
        """
        calls = []

        def reward(response):
            calls.append(1)
            if len(calls) in (1, 2, 4, 5, 6):
                raise OSError("gone")
            return 1.0
        """,
    )
    plugin_judge = judge(file)
    with caplog.at_level(logging.WARNING):
        scores = [(await plugin_judge.judge(turn)).score for _ in range(8)]
    assert scores == [None, None, 1.0, None, None, None, None, None]
    assert plugin_judge.is_disabled
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    assert "switched off" in caplog.records[-1].getMessage()
    assert "switched off after 3 failures in a row" in (await plugin_judge.judge(turn)).reason


async def test_a_plain_reward_is_never_entered_twice_and_does_not_block_the_loop(tmp_path, turn):
    file = plugin(
        tmp_path,
        """
        import time

        inside = 0

        def reward(response):
            global inside
            inside += 1
            assert inside == 1
            time.sleep(0.02)
            inside -= 1
            return 1.0
        """,
    )
    plugin_judge = judge(file)
    beats = 0

    async def heartbeat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.005)
            beats += 1

    heart = asyncio.create_task(heartbeat())
    verdicts = await asyncio.gather(*(plugin_judge.judge(turn) for _ in range(4)))
    heart.cancel()
    assert [verdict.score for verdict in verdicts] == [1.0] * 4
    assert beats >= 4


def test_secrets_are_no_business_of_plugins():
    settings = plugin_settings(Config())
    assert "api_key" not in settings
    assert settings["clip_range"] == settings["eps_clip"]
    assert math.isclose(settings["kl_coeff"], 0.1)
