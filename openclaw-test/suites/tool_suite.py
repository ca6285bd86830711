"""The `tool-use` suite: requests that require one tool call with exact arguments, drawn from a seed.

    seed ─▶ ToolTask(prompt, tools, name, arguments) ─▶ the reply's tool_calls ─▶ passed, or why not

A call passes when it is the only one, names the right tool, and its arguments are equal as JSON. Each task also offers
irrelevant tools.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from openclaw_test.people.personas import Reply

_NUM_OFFERED = 3


@dataclass(frozen=True, slots=True)
class ToolTask:
    """One request with its expected call.

    >>> ToolTask("Set a timer for 5 minutes.", [...], "set_timer", {"minutes": 5})
    """

    prompt: str
    tools: tuple[dict[str, Any], ...]
    name: str
    arguments: Mapping[str, Any]

    def failure(self, reply: Reply) -> str:
        """Why a reply fails the task; empty if it passes."""
        if not reply.tool_calls:
            return "no call"
        if len(reply.tool_calls) > 1:
            return "more than one call"
        [(name, arguments)] = reply.tool_calls
        if name != self.name:
            return "wrong tool"
        try:
            given = json.loads(arguments)
        except ValueError:
            return "arguments are not JSON"
        same = json.dumps(given, sort_keys=True) == json.dumps(dict(self.arguments), sort_keys=True)
        return "" if same else "wrong arguments"


def _tool(name: str, description: str, **kinds: str) -> dict[str, Any]:
    properties = {argument: {"type": kind} for argument, kind in kinds.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = {
    "set_timer": _tool("set_timer", "Start a timer.", minutes="integer"),
    "get_weather": _tool("get_weather", "Weather in a city on a day.", city="string", day="string"),
    "convert_money": _tool("convert_money", "Convert money.", amount="integer", source="string", target="string"),
    "send_message": _tool("send_message", "Send somebody a message.", to="string", text="string"),
    "add_event": _tool("add_event", "Put an event into the calendar.", title="string", day="string", hour="integer"),
    "set_light": _tool("set_light", "Switch the light of a room.", room="string", on="boolean"),
}
_CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Tokyo")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_PEOPLE = ("Mia", "Tom", "Anna", "Ben", "Zoe")
_TITLES = ("dentist", "lunch", "yoga", "meeting", "choir")
_TEXTS = ("I am late", "see you soon", "dinner is ready", "call me back")
_MONEY = ("EUR", "USD", "GBP", "JPY")
_ROOMS = ("kitchen", "hall", "bedroom", "office")

Asked = tuple[str, dict[str, Any]]


def _ask_timer(rng: random.Random) -> Asked:
    minutes = rng.randint(2, 59)
    return f"Set a timer for {minutes} minutes.", {"minutes": minutes}


def _ask_weather(rng: random.Random) -> Asked:
    city, day = rng.choice(_CITIES), rng.choice(_DAYS)
    return f"What is the weather in {city} on {day}?", {"city": city, "day": day}


def _ask_money(rng: random.Random) -> Asked:
    amount, (source, target) = rng.randint(2, 900), rng.sample(_MONEY, 2)
    return f"Convert {amount} {source} to {target}.", {"amount": amount, "source": source, "target": target}


def _ask_message(rng: random.Random) -> Asked:
    to, text = rng.choice(_PEOPLE), rng.choice(_TEXTS)
    return f'Send {to} the message "{text}".', {"to": to, "text": text}


def _ask_event(rng: random.Random) -> Asked:
    title, day, hour = rng.choice(_TITLES), rng.choice(_DAYS), rng.randint(8, 20)
    return f'Add the event "{title}" on {day} at {hour}:00.', {"title": title, "day": day, "hour": hour}


def _ask_light(rng: random.Random) -> Asked:
    room, is_on = rng.choice(_ROOMS), rng.random() < 0.5
    return f"Switch the light in the {room} {'on' if is_on else 'off'}.", {"room": room, "on": is_on}


_ASKS: Mapping[str, Callable[[random.Random], Asked]] = {
    "set_timer": _ask_timer,
    "get_weather": _ask_weather,
    "convert_money": _ask_money,
    "send_message": _ask_message,
    "add_event": _ask_event,
    "set_light": _ask_light,
}


def tool_tasks(num_tasks: int, seed: int) -> list[ToolTask]:
    """Tasks of all tools in turn; deterministic per seed."""
    rng = random.Random(f"tool-use {seed}")
    return [_task(list(_ASKS)[number % len(_ASKS)], rng) for number in range(num_tasks)]


def _task(name: str, rng: random.Random) -> ToolTask:
    prompt, arguments = _ASKS[name](rng)
    others = rng.sample([other for other in TOOLS if other != name], _NUM_OFFERED - 1)
    offered = [TOOLS[name], *(TOOLS[other] for other in others)]
    rng.shuffle(offered)
    return ToolTask(prompt, tuple(offered), name, arguments)
