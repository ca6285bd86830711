"""Conversation files: the published format, its variants, and mistakes that are named by file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from slime.data.conversation_files import Conversation, read_conversations
from slime.errors import ConfigError

PUBLISHED = {
    "session_id": "s1",
    "turns": [
        {"type": "main", "prompt": "2+2?", "response": "4.", "next_state": "thanks! and 3+3?", "trainable": True},
        {"type": "side", "prompt": "Title?", "response": "Sums", "trainable": False},
        {"type": "main", "prompt": "and 3+3?", "response": "**6**", "next_state": "no bold please", "trainable": True},
    ],
}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def read(tmp_path: Path, value: Any, name: str = "talks.json") -> list[Conversation]:
    (tmp_path / name).write_text(json.dumps(value))
    return list(read_conversations(tmp_path / name))


def test_the_published_format(tmp_path: Path):
    [talk] = read(tmp_path, PUBLISHED)
    assert (talk.session_id, talk.num_side, talk.place) == ("s1", 1, f"{tmp_path}/talks.json:1")
    first, second = talk.turns
    assert first.messages == (user("2+2?"),)
    assert first.reply == assistant("4.")
    assert first.next_state == (user("thanks! and 3+3?"),)
    assert second.messages == (user("2+2?"), assistant("4."), user("and 3+3?"))
    assert second.next_state == (user("no bold please"),)
    assert first.is_trainable
    assert second.is_trainable


def test_what_followed_is_the_next_prompt_where_nothing_else_is_written(tmp_path: Path):
    turns = [{"prompt": "a", "response": "b"}, {"prompt": "c", "response": "d", "trainable": False}]
    [talk] = read(tmp_path, {"session_id": "s", "turns": turns})
    assert talk.turns[0].next_state == (user("c"),)
    assert talk.turns[1].next_state is None
    assert not talk.turns[1].is_trainable


def test_messages_with_roles(tmp_path: Path):
    system, tool = {"role": "system", "content": "Be brief."}, {"role": "tool", "tool_call_id": "c", "content": "ok"}
    said = [system, user("a"), assistant("b"), tool, user("c"), assistant("d")]
    [talk] = read(tmp_path, {"session_id": "s", "messages": said})
    assert [turn.messages for turn in talk.turns] == [tuple(said[:2]), tuple(said[:5])]
    assert [turn.next_state for turn in talk.turns] == [(tool, user("c")), None]


def test_a_list_of_messages_is_the_whole_request_unless_it_goes_on(tmp_path: Path):
    turns = [
        {"prompt": "a", "response": "b"},
        {"prompt": [user("x"), assistant("b"), user("y")], "response": assistant("z")},
        {"prompt": [user("more")], "goes_on": True, "response": {"content": "end"}},
    ]
    [talk] = read(tmp_path, {"session_id": "s", "turns": turns})
    assert talk.turns[0].next_state == (user("y"),)
    assert talk.turns[1].messages == (user("x"), assistant("b"), user("y"))
    assert talk.turns[2].messages == (user("x"), assistant("b"), user("y"), assistant("z"), user("more"))
    assert talk.turns[2].reply == {"role": "assistant", "content": "end"}


def test_a_conversation_without_a_name_is_named_by_what_it_says(tmp_path: Path):
    [first, second, again] = read(tmp_path, [{"messages": [user(text), assistant("b")]} for text in ("a", "c", "a")])
    assert first.session_id == again.session_id != second.session_id


def test_a_directory_is_read_in_the_order_of_names_and_each_object_knows_its_line(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    one, two = ({"session_id": name, "messages": [user("a"), assistant("b")]} for name in ("one", "two"))
    (tmp_path / "b.jsonl").write_text(json.dumps(one) + "\n\n" + json.dumps(two) + "\n")
    (tmp_path / "a.json").write_text("\n[\n  " + json.dumps(two, indent=1) + ",\n" + json.dumps(one) + "\n]\n")
    (tmp_path / "sub" / "c.json").write_text("[]")
    (tmp_path / "notes.txt").write_text("not read")
    places = [(talk.session_id, talk.place.removeprefix(f"{tmp_path}/")) for talk in read_conversations(tmp_path)]
    lines = json.dumps(two, indent=1).count("\n")
    assert places == [("two", "a.json:3"), ("one", f"a.json:{4 + lines}"), ("one", "b.jsonl:1"), ("two", "b.jsonl:3")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"session_id": "s"', "not JSON: Expecting ',' delimiter"),
        ("3", "an object is expected, not int"),
        ('{"session_id": "s"}', 'either "turns" or "messages"'),
        ('{"turns": [{"promt": "a", "response": "b"}]}', "turn 1: unknown key 'promt'; did you mean prompt?"),
        ('{"turns": [{"prompt": "a", "response": "b", "rating": 5}]}', 'facts of your own go under "metadata"'),
        ('{"turns": [{"type": "aside", "prompt": "a", "response": "b"}]}', "type 'aside' is not one of main, side"),
        ('{"turns": [{"prompt": "a"}]}', 'turn 1: "response" must be a text or an assistant message'),
        ('{"turns": [{"prompt": "a", "response": "b", "trainable": "no"}]}', '"trainable" must be true or false'),
        ('{"messages": [{"role": "bot", "content": "a"}]}', "message 1: role 'bot' is not one of"),
        ('{"messages": [{"role": "user", "content": 3}]}', "message 1: content must be a string or a list of parts"),
        ('{"messages": "hello"}', "must be a list"),
    ],
)
def test_a_mistake_is_named_by_file_and_line(tmp_path: Path, line: str, words: str):
    file = tmp_path / "talks.jsonl"
    file.write_text(json.dumps(PUBLISHED) + "\n" + line + "\n")
    with pytest.raises(ConfigError) as caught:
        list(read_conversations(file))
    assert str(caught.value).startswith(f"{file}:2: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_syntax_error_in_a_file_of_many_lines_knows_its_own(tmp_path: Path):
    (tmp_path / "talks.json").write_text('[\n {"session_id": "s",\n  "turns": [}]\n')
    with pytest.raises(ConfigError, match=r"talks\.json:3: not JSON"):
        list(read_conversations(tmp_path / "talks.json"))


@pytest.mark.parametrize(
    ("name", "words"), [("none.jsonl", "no such file or directory"), ("a.csv", ".json or .jsonl"), (".", "no .json")]
)
def test_a_path_that_holds_no_conversations(tmp_path: Path, name: str, words: str):
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(ConfigError, match=words):
        list(read_conversations(tmp_path / name))
