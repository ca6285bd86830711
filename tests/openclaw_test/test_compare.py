"""Comparing methods: who takes part, what is kept, and users who wait until the trainer has caught up."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest
import torch
from openclaw_test import compare
from openclaw_test.compare import Comparison, _keep, _kept
from openclaw_test.lockstep import LockStep
from openclaw_test.methods import METHODS, baselines, chosen_arms
from openclaw_test.people.personas import TINY, chosen
from openclaw_test.people.sessions import Session
from openclaw_test.report.gains import gains
from openclaw_test.suites.held_out import HeldOut
from openclaw_test.suites.scoring import PersonaScore, SeedResult
from openclaw_test.trial import Plan
from safetensors.torch import save_file
from slime.errors import ConfigError, TrainerError
from slime.store import Store
from slime.types import Completion, SamplingParams, Turn, TurnKind, TurnState, Verdict, VersionSpan

KNOWN = baselines(4)


def comparison(output_dir: Path, updates: int = 16, weight: float = 0.0) -> Comparison:
    plan = Plan(tuple(chosen("student", 34)), num_sessions=9, num_questions=10)
    model_dir = output_dir / "model"
    model_dir.mkdir(exist_ok=True)
    (model_dir / "config.json").write_text("{}")
    save_file({"weight": torch.full((2,), weight)}, model_dir / "model.safetensors")
    return Comparison(model_dir, output_dir, plan, TINY, 1.0, (0, 1), updates, 16, ())


def test_arms_are_chosen_by_name_and_a_misspelt_one_is_named():
    still, methods = chosen_arms("memory,binary-rl", KNOWN)
    assert (list(still), list(methods)) == (["memory"], ["binary-rl"])
    still, methods = chosen_arms("all", KNOWN)
    assert (list(still), list(methods)) == (["untrained", "memory", "best-of-4"], ["binary-rl", "opd", "combine"])
    with pytest.raises(ConfigError, match="did you mean combine"):
        chosen_arms("combin", KNOWN)


def test_every_method_has_an_arm_that_trains_an_adapter(tmp_path: Path):
    for name in ("custom_loss.py", "custom_rollout.py"):
        (tmp_path / name).write_text("")
    own = tmp_path.name
    _, methods = chosen_arms(f"opd,opd-lora,{own}-lora", KNOWN, [str(tmp_path)])
    assert list(methods) == ["opd", "opd-lora", f"{own}-lora"]
    full, adapted = methods["opd"].flags(), methods["opd-lora"].flags()
    assert adapted[: len(full)] == full, "and the later of two flags counts"
    assert "--use-lora" in adapted[len(full) :]


def test_an_adapters_gain_is_a_share_of_the_full_one(tmp_path: Path):
    def row(arm: str, num_kept: int, num_right: int) -> PersonaScore:
        session = Session("student-0", "student", 0, "It comes to 7.", True, True, 1, 6)
        result = SeedResult(0, [session], {"student": HeldOut(200, num_kept, num_right, 7.5, 0.0)})
        [made] = comparison(tmp_path).plan.rows(arm, [result])
        return made

    rows = [row("untrained", 20, 198), row("opd", 180, 190), row("opd-lora", 172, 194), row("combine", 190, 190)]
    [gain] = gains(rows)
    assert (gain.method, gain.persona) == ("opd", "student")
    assert gain.share == pytest.approx(152 / 160)
    assert gain.accuracy_lost == pytest.approx(0.02)
    assert gains(rows[1:]) == [], "nobody knows what it was before"


def test_a_method_is_its_folder(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"custom_loss\.py does not exist"):
        chosen_arms("all", KNOWN, [str(tmp_path)])
    for name in ("custom_loss.py", "custom_rollout.py"):
        (tmp_path / name).write_text("")
    _, methods = chosen_arms(tmp_path.name, KNOWN, [str(tmp_path)])
    assert str(tmp_path / "custom_loss.py") in methods[tmp_path.name].flags()
    for method in METHODS.values():
        assert Path(method.flags()[1]).is_file()


def test_results_are_kept_and_taken_for_the_same_question_only(tmp_path: Path):
    file = tmp_path / "results" / "memory-0.json"
    asked = comparison(tmp_path)
    session = Session("student-0", "student", 0, "It comes to 7.", True, True, 1, 6)
    result = SeedResult(0, [session], {"student": HeldOut(10, 9, 8, 7.5, 0.0)}, kl=0.25, num_updates=16)
    opd, fewer = METHODS["opd"], comparison(tmp_path, updates=8)
    mark = asked.mark(opd)
    assert _kept(file, mark) is None
    _keep(file, mark, result)
    assert _kept(file, mark) == result
    for other in (fewer.mark(opd), asked.mark(opd.adapted), asked.mark(None)):
        assert _kept(file, other) is None
    assert fewer.mark(None) == asked.mark(None), "how often a method is updated is nothing to a baseline"
    assert _kept(file, comparison(tmp_path, weight=1.0).mark(opd)) is None, "another model in the same place"
    assert asked.plan.rows("memory", [result, dataclasses.replace(result, seed=1)])[0].kl is not None


class Run:
    """What `LockStep` sees of a training run and of its store."""

    run_dir = Path("/run")

    def __init__(self, *states: tuple[int, dict[TurnState, int]]) -> None:
        self._states = list(states)

    @property
    def step(self) -> int:
        return self._states[0][0]

    async def counts(self) -> dict[TurnState, int]:
        state = self._states[0][1]
        if len(self._states) > 1:
            self._states.pop(0)
        return state

    def check(self) -> None:
        if self.step < 0:
            raise TrainerError("ended")


def in_step(run: Run, updates: int, of_run: int = 4) -> LockStep:
    return LockStep(run, run, 4, updates=updates, of_run=of_run)  # type: ignore[arg-type]


async def test_a_round_waits_for_judges_and_for_the_update_that_is_due():
    run = Run(
        (0, {TurnState.READY: 1, TurnState.JUDGED: 3}),
        (0, {TurnState.CLAIMED: 1, TurnState.JUDGED: 3}),
        (0, {TurnState.JUDGED: 4}),
        (1, {TurnState.TRAINED: 4}),
    )
    assert await asyncio.wait_for(in_step(run, 2)(), 5)
    assert run.step == 1


async def test_a_phase_ends_with_its_updates_and_the_next_goes_on():
    """However many updates the one before it came to: sessions may have run out before its last."""
    phase = in_step(Run((1, {}), (2, {}), (3, {})), updates=2)
    assert [await phase(), await phase()] == [True, False]
    assert not await in_step(Run((4, {TurnState.JUDGED: 9})), updates=0)(), "the run has ended, whatever waits"


async def test_with_an_adapter_for_each_user_no_user_may_have_a_batch_waiting(tmp_path: Path):
    async with Store.open(tmp_path) as store:
        step = LockStep(Run((0, {})), store, 2, updates=4, of_run=4, is_per_user=True)  # type: ignore[arg-type]

        async def judged(name: str, user: str) -> None:
            turn = Turn(
                turn_id=name,
                session_id=name,
                parent_id=None,
                kind=TurnKind.MAIN,
                messages=({"role": "user", "content": name},),
                prompt_ids=(1,),
                completion=Completion((2,), (-0.5,), "x", "stop", (VersionSpan(0, 0, 1),)),
                sampling=SamplingParams(),
                reply={"role": "assistant", "content": "x"},
                source=user,
            )
            await store.append(turn)
            await store.attach(name, ({"role": "user", "content": "thanks"},))
            assert [claim.turn.turn_id for claim in await store.claim(1, "test", 60)] == [name]
            await store.record_verdict(name, Verdict(1.0), "test")

        for name, user in (("a", "Ada"), ("b", "Bo"), ("c", "Cleo")):
            await judged(name, user)
        assert await step._has_caught_up()
        await judged("d", "Ada")
        assert not await step._has_caught_up()
        await store.mark_trained(["a", "d"], step=1)
        assert await step._has_caught_up()


async def test_a_run_that_ended_is_not_waited_for():
    with pytest.raises(TrainerError, match="ended"):
        await in_step(Run((-1, {TurnState.READY: 1})), 2)()


@pytest.mark.long
@pytest.mark.timeout(1800, func_only=True)
def test_a_method_and_a_baseline_on_the_tiny_model(tmp_path: Path, tiny_model_dir: Path):
    """One update is no proof of anything, but everything on the way to the table is passed through."""
    flags = ["--persona", "student", "--sessions", "6", "--seeds", "1", "--updates", "1", "--batch-size", "4"]
    flags += ["--model-dir", str(tiny_model_dir), "--arms", "memory,combine", "--questions", "20"]
    compare.main([*flags, "--output-dir", str(tmp_path)])
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    memory, trained = written["rows"]
    assert (memory["assistant"], trained["assistant"]) == ("memory", "combine")
    assert memory["satisfaction"]["mean"] >= 0.7
    assert (trained["updates"], trained["kl"]["mean"] > 0) == (1, True)
    assert trained["accuracy"]["mean"] >= 0.7
    assert len(trained["curve"]) < 6  # the sessions ended with the update
    assert (tmp_path / "curves.png").stat().st_size > 10_000
