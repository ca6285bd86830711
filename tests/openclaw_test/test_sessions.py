"""Personas, their users and what answers them: on scripted assistants, with no server."""

from __future__ import annotations

import random
from collections.abc import Sequence

import openai
import pytest
from openclaw_test.people.assistants import BestOfN, MemoryAssistant, ScriptedAssistant
from openclaw_test.people.personas import Reply, chosen, is_praising, personas, scale_of
from openclaw_test.people.problems import Problem
from openclaw_test.people.sessions import hold_rounds, hold_session, reaction_score
from openclaw_test.people.styles import Style, write_reply
from openclaw_test.people.users import ScriptedUser, User, request_seed
from openclaw_test.suites.scoring import SeedResult
from openclaw_test.trial import Plan, drifts, run_trial
from slime.errors import ConfigError
from slime.types import Message

STUDENT, TA, TEACHER = personas(34).values()


class Knowing:
    """Answers right, in the style that a function of the conversation names; it may look the problem up."""

    def __init__(self, users: Sequence[User], style: dict[str, Style]) -> None:
        self.users = users
        self.style = style
        self.seen: list[list[Message]] = []

    def problem(self, messages: Sequence[Message], user: str) -> Problem:
        asked = next(message["content"] for message in messages if message["role"] == "user")
        return next(u.asked[asked] for u in self.users if u.name == user and asked in u.asked)

    async def reply(self, messages: Sequence[Message], *, user: str, seed: int) -> Reply:
        self.seen.append(list(messages))
        said = " ".join(str(message["content"]) for message in messages if message["role"] in ("system", "user"))
        style = next((style for words, style in self.style.items() if words in said), Style("bold", "neutral"))
        text = write_reply(self.problem(messages, user), style, random.Random(seed))
        return Reply(text, len(text.split()))


def plan(*who: str, **changes: object) -> Plan:
    people = tuple(chosen(",".join(who), 34))
    return Plan(people, **({"num_sessions": 8, "num_questions": 10} | changes))  # type: ignore[arg-type]


def test_the_personas_keep_the_rules_of_the_paper():
    assert STUDENT.keeps(Reply("It comes to 7 apples.", 8))
    assert not STUDENT.keeps(Reply("The answer is **7 apples**.", 9))
    assert TA.keeps(Reply("long", 34))
    assert not TA.keeps(Reply("short", 33))
    assert is_praising("Good job! 7")
    assert not is_praising("Happy to help! That makes 7 apples.")


def test_a_persona_that_nobody_knows_is_named():
    with pytest.raises(ConfigError, match="did you mean teacher"):
        chosen("techer", 34)
    assert [persona.name for persona in chosen("all", 34)] == ["student", "ta", "teacher"]


def test_the_tiny_model_and_its_offspring_write_short(tmp_path):
    assert scale_of(str(tmp_path)).min_tokens == 100
    (tmp_path / "tiny_model.json").write_text("{}")
    assert scale_of(str(tmp_path)).min_tokens == 34


async def test_a_satisfied_user_leaves_and_another_complains_once():
    user = ScriptedUser("student-0", STUDENT, seed=1)
    good = Knowing([user], {"": Style("plain", "neutral")})
    session = await hold_session(user, good, 0, seed=0)
    assert (session.is_kept, session.is_right, session.num_replies) == (True, True, 1)
    bad = Knowing([user], {})
    session = await hold_session(user, bad, 1, seed=0)
    assert (session.is_kept, session.is_right, session.num_replies) == (False, True, 2)
    complaint = bad.seen[1][-1]["content"]
    assert any(word in complaint for word in ("bold", "plain", "format"))


async def test_a_request_that_fails_is_a_failed_session_and_no_dislike():
    def fail(messages: Sequence[Message], seed: int) -> Reply:
        raise openai.APIError("engine gone", request=None, body=None)  # type: ignore[arg-type]

    session = await hold_session(ScriptedUser("student-0", STUDENT, 0), ScriptedAssistant(fail), 4, seed=0)
    assert "engine gone" in session.error
    assert session.num_replies == 0


async def test_the_same_seed_says_the_same_and_another_something_else():
    async def told(seed: int) -> SeedResult:
        seen: list[Knowing] = []

        def make(users: Sequence[User]) -> Knowing:
            seen.append(Knowing(users, {"plain": Style("plain", "neutral")}))
            return seen[0]

        return await run_trial(plan("student", "teacher"), make, seed)

    assert await told(3) == await told(3)
    assert (await told(3)).sessions != (await told(4)).sessions
    assert len({request_seed(0, user, n, a) for user in "ab" for n in range(20) for a in range(3)}) == 120


async def test_a_memory_brings_corrections_back_to_the_user_who_made_them():
    users = [ScriptedUser("student-0", STUDENT, 1), ScriptedUser("teacher-0", TEACHER, 1)]
    inner = Knowing(users, {word: Style("plain", "neutral") for word in ("bold", "plain", "formatting")})
    memory = MemoryAssistant(inner)
    first = await hold_rounds(users[:1], memory, 4, seed=0)
    assert [session.is_kept for session in first] == [False, True, True, True]
    inner.seen.clear()
    await hold_session(users[1], memory, 0, seed=0)
    assert inner.seen[0][0]["content"] == TEACHER.system


async def test_thanks_are_not_remembered():
    user = ScriptedUser("student-0", STUDENT, 1)
    inner = Knowing([user], {"": Style("plain", "neutral")})
    await hold_rounds([user], MemoryAssistant(inner), 3, seed=0)
    assert {messages[0]["content"] for messages in inner.seen} == {STUDENT.system}


async def test_the_best_of_several_is_what_the_judge_hears_the_user_like():
    user = ScriptedUser("student-0", STUDENT, 1)
    styles = [Style("bold", "neutral"), Style("list", "neutral"), Style("plain", "neutral"), Style("boxed", "neutral")]

    class Varied(Knowing):
        async def reply(self, messages: Sequence[Message], *, user: str, seed: int) -> Reply:
            text = write_reply(self.problem(messages, user), styles[seed % 4], random.Random(seed))
            return Reply(text, 9)

    varied = Varied([user], {})
    alone = await hold_rounds([user], varied, 20, seed=0)
    best = await hold_rounds([user], BestOfN(varied, 4, reaction_score([user])), 20, seed=0)
    assert sum(session.is_kept for session in alone) < 12
    assert sum(session.is_kept for session in best) == 20


async def test_taste_drifts_half_way_and_is_measured_on_both_sides():
    drifting = plan("student", "teacher", drift=drifts([STUDENT, TEACHER], [STUDENT, TA, TEACHER]), num_sessions=9)
    result = await run_trial(drifting, lambda users: Knowing(users, {"": Style("plain", "neutral")}), seed=0)
    by_persona = {name: [s for s in result.sessions if s.persona == name] for name in result.held_out}
    assert {name: len(sessions) for name, sessions in by_persona.items()} == {
        "student": 5,
        "teacher": 5,
        "student→ta": 4,
        "teacher→student": 4,
    }
    assert result.held_out["student"].num_kept == result.held_out["teacher→student"].num_kept == 10
    assert result.held_out["teacher"].num_kept == result.held_out["student→ta"].num_kept == 0
    rows = {row.persona: row for row in drifting.rows("plain", [result])}
    assert (rows["student"].sessions.mean, rows["student"].reached) == (3, 1)
    assert (rows["teacher"].sessions.mean, rows["teacher"].reached) == (5, 0)
    assert rows["student"].accuracy.mean == 1
    assert {name: share.mean for name, share in rows["student→ta"].keeps.items()} == {"student": 1, "teacher": 0}
    assert rows["student"].satisfaction.kind == "wilson"


async def test_a_model_that_learns_is_waited_for_and_may_end_the_sessions():
    user = ScriptedUser("student-0", STUDENT, 1)
    waits = iter([True, True, False])

    async def settle() -> bool:
        return next(waits)

    sessions = await hold_rounds([user], Knowing([user], {}), 10, seed=0, settle=settle)
    assert [session.number for session in sessions] == [0, 1, 2]
