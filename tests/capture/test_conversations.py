"""Where requests land: each rule of capture by the smallest conversation that shows it."""

from __future__ import annotations

import time
from collections import OrderedDict

import pytest
from slime.errors import RequestError
from slime.types import TurnKind
from talking import CHAT, Server, assistant, calling, result, user

from openclaw.conversations.ancestry import AnchorSearch
from openclaw.conversations.index import ConversationIndex, hash_credential
from openclaw.conversations.known_turns import KnownTurn
from openclaw.conversations.stored_turns import wanted_turns
from openclaw.replay import as_recorded
from openclaw.requests.identity import Identity
from openclaw.requests.reading import Reading
from openclaw.requests.turn_ids import tool_call_id, turn_of
from openclaw.requests.wire_formats import read_request

MAIN, SIDE, RETRY, BRANCH, COMPACTION = (
    TurnKind.MAIN,
    TurnKind.SIDE,
    TurnKind.RETRY,
    TurnKind.BRANCH,
    TurnKind.COMPACTION,
)


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_reply_is_found_by_its_text_and_the_next_state_is_what_follows(server: Server) -> None:
    first = server.answer([user("How many planets?")], "Eight.")
    second = server.begin([user("How many planets?"), assistant("Eight. \n"), user("Name them.")])
    assert (first.kind, first.parent_id, first.next_state) == (MAIN, None, None)
    assert (second.kind, second.parent_id, second.session_id) == (MAIN, first.turn_id, first.session_id)
    assert second.next_state == (user("Name them."),)


def test_tool_call_ids_survive_a_client_that_rewrites_everything_else(server: Server) -> None:
    first = server.begin([{"role": "system", "content": "Monday"}, user("List the files")])
    reply = calling(first, '{"path": ".", "depth": 1.0}', text="Looking.")
    server.finish(first, reply)
    call_id = reply["tool_calls"][0]["id"]
    rewritten = {**reply, "content": None, "tool_calls": [{**reply["tool_calls"][0], "function": {"name": "run"}}]}
    history = [{"role": "system", "content": "Tuesday"}, user("list files!"), rewritten, result(call_id, "a.py")]
    second = server.begin(history, tools=False)
    assert (second.parent_id, second.kind) == (first.turn_id, MAIN)
    assert second.next_state == (result(call_id, "a.py"),)


def test_an_id_is_found_inside_a_text(server: Server) -> None:
    first = server.begin([user("Add 2 and 3")])
    reply = calling(first, "{}")
    server.finish(first, reply)
    written = f"Calls:\n[{{'id': '{reply['tool_calls'][0]['id']}', 'type': 'function'}}]"
    second = server.begin([user("Add 2 and 3"), assistant(written), user("Observation: 5")])
    assert second.parent_id == first.turn_id


def test_tool_calls_under_counters_are_found_by_name_and_value(server: Server) -> None:
    first = server.begin([user("Add 2 and 3")])
    server.finish(first, calling(first, '{"a": 2.0, "b": 3}'))
    call = {"id": "call_1", "type": "function", "function": {"name": "run", "arguments": '{"b":3,"a":2}'}}
    second = server.begin(
        [user("Add 2 and 3"), {"role": "assistant", "content": None, "tool_calls": [call]}, result("call_1", "5")]
    )
    assert second.parent_id == first.turn_id


def test_unknown_ids_of_full_length_belong_to_somebody_else(server: Server) -> None:
    first = server.answer([user("Add 2 and 3")], "Adding.")
    foreign = {"id": "call_Xq81mmZk20aBcDe", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    reply = {"role": "assistant", "content": "Adding.", "tool_calls": [foreign]}
    second = server.begin([user("Add 2 and 3"), reply, result(foreign["id"], "5")])
    assert second.parent_id is None
    assert second.session_id == first.session_id  # a conversation that began like this one went on elsewhere


def test_the_sequence_of_replies_tells_equal_texts_apart(server: Server) -> None:
    history = [user("Go on")]
    placements = []
    for _ in range(4):
        placements.append(server.answer(history, "Done."))
        history = [*history, assistant("Done."), user("Go on")]
    assert [placement.parent_id for placement in placements[1:]] == [turn.turn_id for turn in placements[:3]]
    assert len({placement.session_id for placement in placements}) == 1


def test_assistant_messages_that_are_not_ours_are_passed_over(server: Server) -> None:
    examples = [user("Say hi"), assistant("Ok."), user("2+2?"), assistant("4")]
    first = server.answer([*examples, user("3+3?")], "It is 6, as you can count.")
    moved = [*examples, user("3+3?"), assistant("It is 6, as you can count."), user("file: a.py"), assistant("Ok.")]
    second = server.begin([*moved, user("4+4?")])
    assert second.parent_id == first.turn_id
    assert second.next_state == (user("file: a.py"), assistant("Ok."), user("4+4?"))


def test_a_reply_is_found_as_lines_of_a_longer_text(server: Server) -> None:
    first = server.answer([user("Count to two, please")], "One.\nTwo.")
    joined = assistant("One.\nTwo.\nAnd a note of another model.")
    assert server.begin([user("Count to two, please"), joined, user("Three?")]).parent_id == first.turn_id


def test_a_shortened_reply_is_found_by_its_place(server: Server) -> None:
    first = server.answer([user("Tell me a story")], "Once upon a time there was a small house by the sea.")
    cut = assistant("Once upon a time there was [cut by the client]")
    assert server.begin([user("Tell me a story"), cut, user("And then?")]).parent_id != first.turn_id
    cut = assistant("Once upon a time there was a small house by the …")
    assert server.begin([user("Tell me a story"), cut, user("And then?")]).parent_id == first.turn_id


def test_inline_thinking_and_time_stamps_do_not_hide_a_reply(server: Server) -> None:
    first = server.answer(
        [user("And now?\n\nRuntime: agent=main | session=agent:x:y | host=h")], "<think>hm</think>Tea."
    )
    context = user("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnothing\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>")
    asked = user("[Sat 2026-11-21 01:00 UTC] Milk?")
    second = server.begin([user("And now?"), assistant("Tea."), asked, context])
    assert second.parent_id == first.turn_id
    assert second.next_state == (user("Milk?"),)


def test_a_failed_request_sent_again_is_a_retry_with_the_same_parent(server: Server) -> None:
    first = server.answer([user("One?")], "1")
    history = [user("One?"), assistant("1"), user("Two?")]
    failed = server.begin(history, stream=True)
    server.fail(failed)
    again = server.begin(history)  # without `stream`
    assert (again.kind, again.retry_of, again.parent_id) == (RETRY, failed.turn_id, first.turn_id)
    assert again.next_state == failed.next_state == (user("Two?"),)
    server.finish(again, assistant("2"))
    assert server.begin([*history, assistant("2"), user("Three?")]).kind is MAIN


def test_an_equal_request_in_flight_is_another_conversation_unless_it_counts_itself_as_a_retry(server: Server) -> None:
    first = server.begin([user("Roll")])
    second = server.begin([user("Roll")])
    assert (second.kind, second.session_id != first.session_id) == (MAIN, True)
    third = server.begin([user("Roll")], headers={"x-stainless-retry-count": "1"})
    assert (third.kind, third.retry_of) == (RETRY, second.turn_id)


def test_an_equal_request_that_was_answered_is_a_new_conversation_at_the_start_and_a_branch_later(
    server: Server,
) -> None:
    first = server.answer([user("Roll")], "Six.")
    again = server.answer([user("Roll")], "Two.")
    assert (again.kind, again.session_id != first.session_id) == (MAIN, True)
    history = [user("Roll"), assistant("Six."), user("Again")]
    server.answer(history, "Four.")
    regenerated = server.begin(history)
    assert (regenerated.kind, regenerated.parent_id) == (BRANCH, first.turn_id)


def test_an_edited_message_is_a_branch_and_a_second_try_after_a_failure_is_not(server: Server) -> None:
    first = server.answer([user("Roll")], "Six.")
    server.fail(server.begin([user("Roll"), assistant("Six."), user("Agian")]))
    corrected = server.answer([user("Roll"), assistant("Six."), user("Again")], "Four.")
    edited = server.begin([user("Roll"), assistant("Six."), user("Stop")])
    assert (corrected.kind, edited.kind) == (MAIN, BRANCH)
    assert corrected.parent_id == edited.parent_id == first.turn_id
    assert edited.session_id == first.session_id


def test_a_partial_reply_that_comes_back_is_a_parent(server: Server) -> None:
    first = server.begin([user("Do it")])
    reply = calling(first, "{}")
    server.finish(first, reply, delivered=False)
    second = server.begin([user("Do it"), reply, result(reply["tool_calls"][0]["id"], "ok")])
    assert (second.parent_id, second.kind) == (first.turn_id, MAIN)


def test_a_note_in_place_of_a_dropped_reply_is_no_branch(server: Server) -> None:
    first = server.answer([user("Hello")], "Hi.")
    second = server.begin([user("Hello"), assistant("Hi."), user("Break")])
    server.finish(second, calling(second, "{broken"))
    third = server.begin([user("Hello"), assistant("Hi."), user("Break"), assistant("(failed)"), user("And now?")])
    assert (third.kind, third.parent_id) == (MAIN, first.turn_id)


def test_a_compaction_is_a_sibling_and_its_summary_carries_the_conversation_on(server: Server) -> None:
    first = server.answer([user("Plan the trip")], "Lisbon in May.")
    order = (
        "Do not call any tools. Your task is to write a detailed summary of the conversation so far, so that the work "
        "can go on from it alone. Name what the person wanted, what was decided, what was done, which files and places "
        "were spoken of, and what is still to be done. Keep every name and number exactly as it was written above."
    )
    history = [user("Plan the trip"), assistant("Lisbon in May."), user(order)]
    summary = "<analysis>long</analysis><summary>The person goes to Lisbon in May; hotel still open.</summary>"
    compaction = server.answer(history, summary)
    assert (compaction.kind, compaction.parent_id, compaction.next_state) == (COMPACTION, first.turn_id, None)
    carried = user("What happened so far:\nThe person goes to Lisbon in May; hotel still open.")
    after = server.answer([carried, user("Book the hotel")], "Booked.")
    assert (after.kind, after.parent_id, after.session_id) == (MAIN, compaction.turn_id, first.session_id)
    kept = server.begin([carried, assistant("Lisbon in May."), user("And the flight")])
    assert kept.parent_id == first.turn_id  # kept word for word behind the summary


def test_a_transcript_to_be_summarised_belongs_to_the_conversation_it_holds(server: Server) -> None:
    first = server.answer([user("Plan the trip to Lisbon")], "In May, by train.")
    server.answer([user("Plan the party for eight")], "In May, by train.")
    compaction = server.begin(
        [
            {"role": "system", "content": "You summarize a conversation for the agent that goes on with it."},
            user("<conversation>\n[User]: Plan the trip to Lisbon\n\n[Assistant]: In May, by train.\n</conversation>"),
        ],
        tools=False,
    )
    assert (compaction.kind, compaction.session_id, compaction.parent_id) == (COMPACTION, first.session_id, None)


def test_a_title_before_its_conversation_and_a_commit_message_after_it_share_its_session(server: Server) -> None:
    title = server.begin(
        [{"role": "system", "content": "Generate a short title for the session."}, user("<s>Fix the parser</s>")],
        tools=False,
    )
    first = server.answer([user("Fix the parser")], "Fixed the loop in parse().")
    commit = server.begin(
        [
            {
                "role": "system",
                "content": "You write one-line messages. Generate a commit message for the diff.",
            },
            user("USER: Fix the parser\nASSISTANT: Fixed the loop in parse().\n# Diff\n-a\n+b"),
        ],
        tools=False,
    )
    assert (title.kind, commit.kind, first.kind) == (SIDE, SIDE, MAIN)
    assert title.session_id == commit.session_id == first.session_id
    assert (commit.parent_id, commit.next_state) == (None, None)


def test_headers_name_the_session_and_never_the_parent(server: Server) -> None:
    first = server.answer([user("Hello")], "Hi.", headers={"x-session-id": "mine"})
    fork = server.begin([user("Hello"), assistant("Hi."), user("A")], headers={"x-session-id": "other"})
    assert (first.session_id, first.source) == ("mine", "header")
    assert (fork.session_id, fork.parent_id) == ("other", first.turn_id)
    stranger = server.begin([user("Something else")], headers={"x-session-id": "mine"})
    assert (stranger.session_id, stranger.parent_id) == ("mine", None)


@pytest.mark.parametrize(
    ("headers", "body", "session", "source"),
    [
        ({}, {"session_id": "b"}, "b", "body"),
        ({}, {"user": "ann"}, "ann", "user"),
        ({"x-session-id": "h"}, {"session_id": "b", "user": "ann"}, "h", "header"),
        ({}, {"prompt_cache_key": "k", "user": "ann"}, "k", "body"),
        ({"x-claude-code-session-id": "c", "x-claude-code-agent-id": "a1"}, {}, "c/a1", "header"),
        ({"session-id": "s", "thread-id": "t"}, {"prompt_cache_key": "s"}, "t", "header"),
        ({}, {"metadata": {"user_id": '{"session_id": "m"}'}}, "m", "body"),
    ],
)
def test_who_names_the_session(
    server: Server, headers: dict[str, str], body: dict[str, object], session: str, source: str
) -> None:
    placement = server.begin([user("Hello")], headers=headers, **body)
    assert (placement.session_id, placement.source) == (session, source)


def test_conversations_under_one_user_are_told_apart_by_their_history(server: Server) -> None:
    first = server.answer([user("One")], "1", user="ann")
    second = server.answer([user("Other")], "O", user="ann")
    third = server.begin([user("One"), assistant("1"), user("Two")], user="ann")
    assert (first.session_id, second.session_id, third.session_id) == ("ann", "ann#2", "ann")


def test_what_the_client_says_of_the_turn_wins(server: Server) -> None:
    side = server.begin([user("Hello")], headers={"x-turn-type": "side", "x-session-done": "true"})
    assert (side.kind, side.is_done) == (SIDE, True)
    main = server.begin(
        [{"role": "system", "content": "Generate a short title"}, user("Hello")], tools=False, turn_type="main"
    )
    assert (main.kind, main.is_done) == (MAIN, False)
    with pytest.raises(RequestError, match="did you mean side"):
        server.begin([user("Hello")], headers={"x-turn-type": "sid"})


def test_credentials_never_share_turns_or_sessions(server: Server) -> None:
    mine = server.begin([user("Hello")], credential="a", headers={"x-session-id": "same"})
    reply = calling(mine, "{}", text="Hi.")
    server.finish(mine, reply)
    history = [user("Hello"), reply, result(reply["tool_calls"][0]["id"], "ok")]
    theirs = server.begin(history, credential="b", headers={"x-session-id": "same"})
    assert theirs.parent_id is None
    assert theirs.session_id != mine.session_id
    assert server.begin(history, credential="a", headers={"x-session-id": "same"}).parent_id == mine.turn_id


def test_of_a_credential_only_a_hash_is_kept(server: Server) -> None:
    placement = server.begin([user("Hello")], credential="sk-secret")
    assert "sk-secret" not in str(placement)
    assert len(placement.credential) == 32


def test_anthropic_and_responses_requests_find_their_parents_too(server: Server) -> None:
    first = server.begin([user("List")], endpoint="/v1/messages?beta=true")
    reply = calling(first, "{}", text="Looking.")
    server.finish(first, reply)
    call_id = reply["tool_calls"][0]["id"]
    blocks = [{"type": "text", "text": "Looking."}, {"type": "tool_use", "id": call_id, "name": "run", "input": {}}]
    answer = [
        {"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": "a.py"}]},
        {"type": "text", "text": "<system-reminder>be brief</system-reminder>"},
        {"type": "text", "text": "Delete it"},
    ]
    second = server.begin(
        [user("List"), {"role": "assistant", "content": blocks}, {"role": "user", "content": answer}],
        endpoint="/v1/messages",
    )
    assert second.parent_id == first.turn_id
    assert second.next_state == (result(call_id, "a.py"), user("Delete it"))

    third = server.begin([], endpoint="/v1/responses", input="List")
    reply = calling(third, "{}")
    server.finish(third, reply)
    call_id = reply["tool_calls"][0]["id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": "a.py"}
    fourth = server.begin([], endpoint="/v1/responses", input=[output], previous_response_id=f"resp_{third.turn_id}")
    assert (fourth.parent_id, fourth.next_state) == (third.turn_id, (result(call_id, "a.py"),))
    server.finish(fourth, assistant("One file."))
    fifth = server.begin([], endpoint="/v1/responses", input="Thanks", previous_response_id=f"resp_{fourth.turn_id}")
    assert (fifth.parent_id, fifth.next_state) == (fourth.turn_id, (user("Thanks"),))


def test_a_restarted_index_goes_on_where_the_old_one_was(server: Server) -> None:
    first = server.answer([user("One?")], "1", headers={"x-session-id": "s"})
    second = server.begin([user("One?"), assistant("1"), user("Two?")], headers={"x-session-id": "s"})
    reply = calling(second, "{}")
    server.finish(second, reply)
    broken = server.begin([user("Alone")])
    server.finish(broken, assistant("Brok"), delivered=False)
    server.restart()
    server.index.restore(server.stored)  # twice does no harm
    assert server.index.num_turns == 3
    history = [user("One?"), assistant("1"), user("Two?"), reply, result(reply["tool_calls"][0]["id"], "2")]
    third = server.begin(history)
    assert (third.parent_id, third.session_id) == (second.turn_id, "s")
    edited = server.begin([user("One?"), assistant("1"), user("Three?")])
    assert (edited.parent_id, edited.kind) == (first.turn_id, BRANCH)
    assert server.begin([user("Alone")]).retry_of == broken.turn_id


def test_forgotten_turns_are_wanted_until_they_are_restored() -> None:
    server = Server(ConversationIndex(max_turns=2))
    first = server.begin([user("One?")])
    reply = calling(first, "{}")
    server.finish(first, reply)
    for text in ("Two?", "Three?", "Four?"):
        server.answer([user(text)], "Yes.")
    assert server.index.num_turns == 2
    messages = [user("One?"), reply, result(reply["tool_calls"][0]["id"], "1")]
    request = as_recorded("/v1/chat/completions", {}, {"messages": messages}, "key", 1_800_001_000.0)
    reading, known = Reading(request.conversation), server.index.known(hash_credential("key"))
    assert list(wanted_turns(reading, known)) == [first.turn_id]
    server.index.restore([server.stored[0]])
    assert list(wanted_turns(reading, known)) == []
    assert server.index.begin(request).parent_id == first.turn_id


def test_memory_is_bounded() -> None:
    server = Server(ConversationIndex(max_turns=50))
    for number in range(300):
        server.answer([user(f"Question {number}")], f"Answer {number}", credential=f"key {number % 7}")
    assert server.index.num_turns == 50
    known = server.index._known.values()
    assert sum(len(turns.turns) for turns in known) == 50
    assert sum(len(turns.sessions) for turns in known) == 50
    assert sum(len(turns._by_request) for turns in known) == 50


def test_a_flood_of_one_credential_leaves_the_memory_of_another_alone() -> None:
    server = Server(ConversationIndex(max_turns=50))
    first = server.answer([user("Where were we?")], "At the harbour, you and I.", credential="quiet")
    for number in range(500):
        server.answer([user(f"spam {number}")], f"reply {number}", credential="loud")
    history = [user("Where were we?"), assistant("At the harbour, you and I."), user("And then?")]
    assert server.begin(history, credential="quiet").parent_id == first.turn_id
    assert server.index.num_turns == 50


def test_equal_requests_cost_the_same_however_many_there_were() -> None:
    """Steps, not seconds: the turns that placing looks at, for the hundredth and for the two thousandth."""
    looked_at: list[str] = []

    class Counted(OrderedDict[str, KnownTurn]):
        def __getitem__(self, key: str) -> KnownTurn:
            looked_at.append(key)
            return super().__getitem__(key)

    server = Server()
    server.answer([user("ping")], "pong")
    known = server.index.known(hash_credential("key"))
    known.turns = Counted(known.turns)
    steps = []
    for number in range(2000):
        looked_at.clear()
        server.answer([user("ping")], f"pong {number}")
        steps.append(len(looked_at))
    assert max(steps[-100:]) <= 1.2 * max(steps[100:200])


def test_many_equal_replies_do_not_hide_the_conversation_that_goes_on() -> None:
    server = Server()
    placements = [server.answer([user(f"Greet number {number}")], "Hello!") for number in range(200)]
    for number in (0, 7, 150, 199):
        placement = server.begin([user(f"Greet number {number}"), assistant("Hello!"), user("Thanks")])
        assert placement.parent_id == placements[number].turn_id


def test_a_reply_that_was_lost_on_its_way_is_asked_for_again_as_a_retry() -> None:
    server = Server()
    first = server.answer([user("Hi")], "Hello")
    again = server.begin([user("Hi")], headers={"x-stainless-retry-count": "1"})
    assert (again.kind, again.retry_of, again.session_id) == (RETRY, first.turn_id, first.session_id)
    assert again.was_answered
    server.finish(again, assistant("Hello"))
    assert server.begin([user("Hi"), assistant("Hello"), user("And?")]).parent_id == again.turn_id


def test_of_two_equal_answered_questions_none_counts_as_lost() -> None:
    server = Server()
    for _ in range(2):
        server.answer([user("Hi")], "Hello")
    again = server.begin([user("Hi")], headers={"x-stainless-retry-count": "1"})
    assert (again.kind, again.retry_of) == (MAIN, None)


def test_a_wall_clock_that_jumps_makes_no_new_conversation_of_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    index = ConversationIndex()
    request = as_recorded(CHAT, {"x-session-id": "s"}, {"model": "m", "messages": [user("Hi")]}, "key")
    first = index.begin(request)
    index.fail(first)
    jumped = time.time() + 7200
    monkeypatch.setattr(time, "time", lambda: jumped)
    again = index.begin(request)
    assert (again.kind, again.retry_of) == (RETRY, first.turn_id)


def test_names_and_labels_are_kept_short() -> None:
    server = Server()
    long = "n" * 1_000_000
    placement = server.begin([user("Hi")], headers={"x-session-id": long})
    assert len(placement.session_id) < 256
    assert server.begin([user("Hi")], headers={"x-session-id": long}).session_id == placement.session_id
    assert server.begin([user("Hi")], headers={"x-session-id": long + "m"}).session_id != placement.session_id
    assert len(server.begin([user("Ho")], prompt_cache_key=long).session_id) < 256
    for number in range(100):
        server.begin([{"role": "system", "content": "Generate a title"}, user(f"{number}" + long)], tools=False)
    known = server.index.known(hash_credential("key"))
    assert sum(len(text) for _, text in known.waiting_labels) < 100_000


def test_texts_that_are_remembered_are_bounded_in_characters() -> None:
    server = Server(ConversationIndex(max_turns=10_000, max_chars=100_000))
    for number in range(300):
        server.answer([user(f"{number} " + "w" * 1500)], f"{number} " + "v" * 1500)
    kept = server.index.known(hash_credential("key")).turns.values()
    assert sum(turn.num_chars for turn in kept) <= 100_000
    assert server.index.num_turns < 100


def test_a_request_that_repeats_a_known_reply_without_end_is_placed_in_bounded_time() -> None:
    """Every message is weighed against every turn that said the same, and each of those against its own past."""
    server = Server()
    for number in range(64):
        server.answer([user(f"Question {number}")], "ok")
    steps = []
    for count in (500, 1000, 2000):
        messages = [part for number in range(count) for part in (user(f"odd {number}"), assistant("ok"))]
        search = AnchorSearch(
            Reading(read_request(CHAT, {"messages": messages})),
            server.index.known(hash_credential("key")),
            Identity(),
            None,
        )
        search.find()
        steps.append(search.num_steps)
    assert steps[2] <= 2.2 * steps[1]
    assert steps[1] <= 2.2 * steps[0]


def test_ids_are_letters_and_digits_and_lead_back_to_their_turn(server: Server) -> None:
    placement = server.begin([user("Hello")])
    call_id = tool_call_id(placement.turn_id, 12)
    assert call_id.isalnum()
    assert call_id.isascii()
    assert turn_of(call_id) == turn_of(f"resp_{placement.turn_id}") == placement.turn_id
    assert turn_of("call_8fZk3q") is None
    assert turn_of("toolu_01ABCdef") is None
