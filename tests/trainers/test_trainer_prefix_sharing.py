"""A session of eight turns in the real trainer: fed once instead of eight times over, to the same gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from learners import ROOT, VOCAB_SIZE, batch_of, gradients_of, trainer_of
from slime.data.stitching import ScoredTurn, stitch
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import LOSS
from slime.plugins.losses import LossHook, load_loss
from slime.types import Completion, SamplingParams, Turn, TurnKind, VersionSpan

NUM_TURNS = 8
METHODS = {"binary-rl": "openclaw-rl", "opd": "openclaw-opd", "combine": "openclaw-combine"}


class TurnByTurn(LossHook):
    """A loss that has every sample fed by itself, as one does that reads which tokens are of one sample."""

    sees_samples = True


def loss_of(method: str, kind: type[LossHook] = LossHook) -> LossHook:
    return kind(load_loss(str(ROOT / METHODS[method] / "custom_loss.py")).call)


def session(name: str = "session", seed: int = 0) -> list[ScoredTurn]:
    """Turns that were fed on from one another, judged differently; a teacher has read every other one."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> tuple[int, ...]:
        length = int(torch.randint(low, high, (1,), generator=generator))
        return tuple(torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist())

    history, turns = draw(20, 30), []
    for number in range(NUM_TURNS):
        prompt, reply = history + draw(5, 12), draw(20, 40)
        history = prompt + reply
        completion = Completion(reply, (-4.1,) * len(reply), "", "stop", (VersionSpan(0, 0, len(reply)),))
        turn = Turn(
            turn_id=f"{name}{number}",
            session_id=name,
            parent_id=None,
            kind=TurnKind.MAIN,
            messages=(),
            prompt_ids=prompt,
            completion=completion,
            sampling=SamplingParams(temperature=1.0),
            reply={"role": "assistant", "content": ""},
        )
        taught = {"teacher_logprobs": (-3.5,) * len(reply), "has_teacher": (1,) * len(reply)} if number % 2 else {}
        turns.append(ScoredTurn(turn, (1.0, -1.0, 1.0)[number % 3], taught))
    return turns


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("method", METHODS)
def test_a_session_is_fed_once_to_the_gradient_of_its_turns(policy_dir: Path, method: str) -> None:
    turns = session()
    one_by_one = batch_of([sample for turn in turns for sample in stitch([turn], source="ada")])
    at_once = batch_of(list(stitch(turns, source="ada")))
    assert (len(one_by_one.samples), len(at_once.samples)) == (NUM_TURNS, 1)
    apart = gradients_of(trainer_of(policy_dir, loss_fn=loss_of(method, TurnByTurn)), one_by_one)
    assert max(float(gradient.abs().max()) for gradient in apart.values()) > 1e-3
    for batch in (one_by_one, at_once):
        assert largest_difference(gradients_of(trainer_of(policy_dir, loss_fn=loss_of(method)), batch), apart) <= 1e-5
    fed = {
        kind: trainer_of(policy_dir, loss_fn=loss_of(method, kind)).train(one_by_one).metrics["train/fed_tokens"]
        for kind in (TurnByTurn, LossHook)
    }
    assert fed[LossHook] == len(at_once.samples[0].token_ids) - 1
    assert fed[TurnByTurn] >= 3 * fed[LossHook]


@pytest.mark.parametrize("loss", [{"behaviour_correction": "mis", "mis_level": "geometric"}, {"use_opsm": True}])
def test_what_counts_by_reply_counts_by_the_same_replies(policy_dir: Path, loss: dict[str, Any]) -> None:
    batch = batch_of([sample for turn in session() for sample in stitch([turn])])
    apart, joined = (
        gradients_of(trainer_of(policy_dir, loss=loss, loss_fn=loss_of("binary-rl", kind)), batch)
        for kind in (TurnByTurn, LossHook)
    )
    assert largest_difference(joined, apart) <= 1e-5
    plain = gradients_of(trainer_of(policy_dir, loss_fn=loss_of("binary-rl", TurnByTurn)), batch)
    assert largest_difference(plain, apart) > 1e-4, "it does count by reply"


@pytest.mark.parametrize("loss", [{"kl_coef": 0.1, "kl_loss_coef": 0.0}, {"advantage_estimator": "ppo"}])
def test_what_is_known_before_the_first_step_is_the_same(policy_dir: Path, loss: dict[str, Any]) -> None:
    """The KL in the reward and a critic's values: of turns that come one by one, and of one sample of them all."""
    turns = session()
    one_by_one = batch_of([sample for turn in turns for sample in stitch([turn], source="ada")])
    at_once = batch_of(list(stitch(turns, source="ada")))
    scored = []
    for batch in (one_by_one, at_once):
        trainer = trainer_of(policy_dir, loss=loss)
        trainer.train(at_once)  # away from the reference, and from a critic of zeros
        samples = trainer._prescore(batch).samples
        for name in trainer._prescore.names:
            streams = [(s.streams[name], s.streams["loss_mask"]) for s in samples]
            trained = [x for stream, mask in streams for x, flag in zip(stream, mask, strict=True) if flag]
            scored.append((name, trained))
    half = len(scored) // 2
    assert half
    for (name, apart), (_, together) in zip(scored[:half], scored[half:], strict=True):
        assert apart == pytest.approx(together, abs=1e-5), name
        assert max(map(abs, apart)) > 1e-3


def test_sessions_that_come_mixed_up_are_each_fed_once(policy_dir: Path) -> None:
    ada, bob = session("ada"), session("bob", seed=1)
    mixed = [sample for pair in zip(reversed(ada), bob, strict=True) for turn in pair for sample in stitch([turn])]
    trainer = trainer_of(policy_dir, max_tokens_per_gpu=64)  # less than either session: a micro-batch for each
    metrics = trainer.train(batch_of(mixed)).metrics
    lengths = [len(turns[-1].turn.prompt_ids) + len(turns[-1].turn.completion.token_ids) - 1 for turns in (ada, bob)]
    assert metrics["train/fed_tokens"] == sum(lengths)


def test_a_loss_that_reads_samples_gets_them_as_they_came(policy_dir: Path) -> None:
    seen: list[int] = []

    def compute_loss(policy_logprobs, sample_index, sum_of_sample_mean):  # type: ignore[no-untyped-def]
        seen.append(int(sample_index.max()) + 1)
        return sum_of_sample_mean(policy_logprobs)

    batch = batch_of([sample for turn in session() for sample in stitch([turn])])
    trainer_of(policy_dir, loss_fn=LossHook(NamedCall.match(compute_loss, LOSS.names))).train(batch)
    assert seen == [NUM_TURNS]
