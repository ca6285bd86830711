"""The conversations the tiny model learns from: generated, endless, and the same for the same seed.

`random_conversation(rng)` → `Conversation`: mostly sums in mixed styles with wishes about style, complaints,
corrections and thanks in between; some small talk, some thinking, some tool calls. A wish about style in the system
prompt or with a problem holds from then on; one in a complaint holds for what was complained about, and is
remembered at the next problem only half of the time. Without a wish a style is drawn from the priors of `styles`.
Wrong answers appear so that corrections can be learned, but are not themselves learned from.
"""

from __future__ import annotations

import dataclasses
import json
import random
from dataclasses import dataclass, field
from typing import Any

from openclaw_test.people import phrases
from openclaw_test.people.problems import Problem, random_problem
from openclaw_test.people.styles import Format, Style, Tone, random_style, write_reply
from slime.types import Message

HINT_MARKER = "\n\n[user's hint / instruction]\n"
"""What hindsight is appended with when a teacher scores a reply (on-policy distillation); understood as a wish."""

REMEMBERED = 0.5
"""How often a complaint is remembered at the next problem of the conversation."""

_FORMAT_WISHES: dict[str, Format] = {"plain": "plain", "bold": "bold", "list": "list", "boxed": "boxed"}
_TONE_WISHES: dict[str, Tone] = {"short": "short", "detailed": "long", "friendly": "friendly", "praising": "praising"}
_WISH_WEIGHTS = {"plain": 5, "bold": 4, "list": 4, "boxed": 4, "short": 3, "detailed": 3, "friendly": 3, "praising": 3}

_SYSTEM_PROMPTS = ("You are a helpful assistant.", "You help people with sums.", "You are a helpful math tutor.")
_WELCOMES = ("You are welcome!", "You are welcome! Bye!", "Glad to help!")
_THINK = "Think before you answer."
_SIGNS = {"plus": "+", "minus": "-", "times": "*"}
_CITIES = ("Paris", "Rome", "Oslo", "Berlin", "Madrid", "Vienna")
_WEATHERS = ("sunny", "cloudy", "rainy", "windy")

CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Work out a sum.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@dataclass(slots=True)
class Conversation:
    """Messages as a chat template takes them; `is_learned` has one entry for each assistant message, in order."""

    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    is_learned: list[bool] = field(default_factory=list)

    def say(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})

    def reply(self, content: str, *, is_learned: bool = True, **extra: Any) -> None:
        self.messages.append({"role": "assistant", "content": content, **extra})
        self.is_learned.append(is_learned)


@dataclass(slots=True)
class _Wants:
    """What has been asked for so far in a conversation."""

    format: Format | None = None
    tone: Tone | None = None

    def add(self, wish: str) -> None:
        self.format = _FORMAT_WISHES.get(wish, self.format)
        self.tone = _TONE_WISHES.get(wish, self.tone)

    def style(self, rng: random.Random) -> Style:
        drawn = random_style(rng)
        return Style(self.format or drawn.format, self.tone or drawn.tone)


def random_conversation(rng: random.Random) -> Conversation:
    """One conversation of the corpus."""
    [make] = rng.choices((_sums, _small_talk, _thinking, _tools), (90, 3, 3, 4))
    conversation: Conversation = make(rng)
    return conversation


def _random_wish(rng: random.Random) -> str:
    [name] = rng.choices(list(_WISH_WEIGHTS), list(_WISH_WEIGHTS.values()))
    return name


def _sums(rng: random.Random) -> Conversation:
    talk, wants = Conversation(), _Wants()
    _open(talk, wants, rng)
    for number in range(rng.choice((1, 1, 1, 1, 2, 2, 3))):
        problem = random_problem(rng, "train")
        say = phrases.ask if number == 0 else phrases.ask_next
        talk.say("user", _with_wish(say(problem.text, rng), wants, rng))
        style = wants.style(rng)
        if rng.random() < 0.1:
            style = _wrong_then_corrected(talk, problem, style, wants, rng)
        else:
            talk.reply(write_reply(problem, style, rng))
        if rng.random() < 0.4:
            heard = _complaint_then_redone(talk, problem, style, wants, rng)
            wants = heard if rng.random() < REMEMBERED else wants
    if rng.random() < 0.2:
        talk.say("user", phrases.say_goodbye(rng))
        talk.reply(rng.choice(_WELCOMES))
    return talk


def _open(talk: Conversation, wants: _Wants, rng: random.Random) -> None:
    """No system prompt, a neutral one, or one with wishes."""
    chance = rng.random()
    if chance < 0.45:
        return
    parts = [rng.choice(_SYSTEM_PROMPTS)] if chance < 0.85 else []
    if chance >= 0.65:
        for _ in range(rng.choice((1, 1, 2))):
            name = _random_wish(rng)
            if (wants.format if name in _FORMAT_WISHES else wants.tone) is None:
                wants.add(name)
                parts.append(phrases.wish(name, rng))
    talk.say("system", " ".join(parts))


def _with_wish(text: str, wants: _Wants, rng: random.Random) -> str:
    """The text; now and then with a wish after it, before it, or appended as a hint."""
    if rng.random() > 0.55:
        return text
    name = _random_wish(rng)
    wants.add(name)
    wish = phrases.wish(name, rng)
    [wished] = rng.choices((f"{text} {wish}", f"{wish} {text}", f"{text}{HINT_MARKER}{wish}"), (5, 2, 3))
    return wished


def _wrong_then_corrected(
    talk: Conversation, problem: Problem, style: Style, wants: _Wants, rng: random.Random
) -> Style:
    slip = rng.choice((-2, -1, 1, 2))
    wrong = Problem("plus", problem.a, problem.answer + slip - problem.a, problem.things, problem.text)
    talk.reply(write_reply(wrong, Style(style.format, "neutral"), rng), is_learned=False)
    talk.say("user", phrases.correct(wrong.answer, rng))
    talk.reply(write_reply(problem, Style(style.format, wants.tone or "neutral"), rng))
    return style


def _complaint_then_redone(
    talk: Conversation, problem: Problem, style: Style, wants: _Wants, rng: random.Random
) -> _Wants:
    """A complaint about the reply's style, and the same answer in the style asked for; returns what is wanted now."""
    wants = dataclasses.replace(wants)
    if style.format != "plain" and rng.random() < 0.5:
        wants.add("plain")
        talk.say("user", phrases.complain("plain", rng, against=style.format))
    else:
        name = _random_wish(rng)
        wants.add(name)
        talk.say("user", phrases.complain(name, rng))
    # What nobody spoke of stays as it was in the reply complained about.
    talk.reply(write_reply(problem, Style(wants.format or style.format, wants.tone or "neutral"), rng))
    return wants


def _small_talk(rng: random.Random) -> Conversation:
    talk = Conversation()
    talk.say("user", rng.choice(phrases.GREETINGS))
    talk.reply(rng.choice(("Hello! I am a tiny model, I can help with sums.", "Hi! Ask me a small sum.")))
    if rng.random() < 0.7:
        problem = random_problem(rng, "train")
        talk.say("user", phrases.ask(problem.text, rng))
        talk.reply(write_reply(problem, random_style(rng), rng))
    return talk


def _thinking(rng: random.Random) -> Conversation:
    talk = Conversation()
    problem = random_problem(rng, "train")
    thought = f"{problem.a} {_SIGNS[problem.operation]} {problem.b} = {problem.answer}"
    talk.say("system", _THINK)
    talk.say("user", phrases.ask(problem.text, rng))
    talk.reply(write_reply(problem, random_style(rng), rng), reasoning_content=thought)
    return talk


def _tools(rng: random.Random) -> Conversation:
    talk = Conversation(tools=rng.choice(([CALCULATOR], [WEATHER], [CALCULATOR, WEATHER], [WEATHER, CALCULATOR])))
    wants = _Wants()
    if rng.random() < 0.5:
        _open(talk, wants, rng)
    if rng.choice(talk.tools or []) is CALCULATOR:
        problem = random_problem(rng, "train")
        talk.say("user", phrases.ask(problem.text, rng))
        expression = f"{problem.a} {_SIGNS[problem.operation]} {problem.b}"
        _call(talk, "calculator", {"expression": expression}, str(problem.answer))
        talk.reply(write_reply(problem, wants.style(rng), rng))
    else:
        city, weather, degrees = rng.choice(_CITIES), rng.choice(_WEATHERS), rng.randint(2, 30)
        talk.say("user", f"What is the weather in {city}?")
        _call(talk, "get_weather", {"city": city}, json.dumps({"weather": weather, "degrees": degrees}))
        talk.reply(f"It is {weather} in {city}, {degrees} degrees.")
    return talk


def _call(talk: Conversation, name: str, arguments: dict[str, Any], result: str) -> None:
    talk.reply("", tool_calls=[{"type": "function", "function": {"name": name, "arguments": arguments}}])
    talk.say("tool", result)
