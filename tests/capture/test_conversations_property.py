"""Clients that edit, retry, regenerate, compact and interleave: every request lands where the model of them knows.

The machine plays several conversations at once under two credentials. Replies are drawn from a few texts, so that many
turns have said the same; people's words are unique, so that every place is decidable. Between requests a client may
rewrite its history in all the ways that were seen in recordings, and the server may be killed and started again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from slime.types import Message, TurnKind
from talking import Server, assistant, calling, result, user

from openclaw.conversations.index import Placement

_SUMMARY_PROMPT = {"role": "system", "content": "You summarize the conversation for the agent that continues it."}


@dataclass
class Node:
    """A delivered turn as the client remembers it: the history that ends with its reply."""

    placement: Placement
    history: list[Message]
    num_delivered: int = 0  # main continuations that were answered


@dataclass
class Attempt:
    """A request on its way, and what is expected of it."""

    placement: Placement
    parent: Node | None
    messages: list[Message]
    asked: Message


@dataclass
class Client:
    """One conversation of one person."""

    credential: str
    session_id: str | None = None
    nodes: list[Node] = field(default_factory=list)
    newest: Node | None = None
    flying: Attempt | None = None
    failed: Attempt | None = None
    given_up: list[list[Message]] = field(default_factory=list)  # failed requests that it never sent again


class Conversations(RuleBasedStateMachine):
    """Drives `ConversationIndex` beside a plain model of what its clients mean."""

    @initialize(names=st.lists(st.sampled_from(["anna", "ben"]), min_size=2, max_size=4))
    def start(self, names: list[str]) -> None:
        self.server = Server()
        self.clients = [Client(credential=name) for name in names]
        self.words = 0

    def _unique(self, what: str) -> str:
        self.words += 1
        return f"{what} number {self.words:04d}"

    def _client(self, choice: int, *, is_waiting: bool = False) -> Client:
        """One of the clients that wait for a reply, or of those that do not."""
        able = [client for client in self.clients if (client.flying is not None) is is_waiting]
        return able[choice % len(able)]

    def _any_idle(self) -> bool:
        return any(client.flying is None for client in self.clients)

    def _any_waiting(self) -> bool:
        return any(client.flying is not None for client in self.clients)

    # ── what a client does ───────────────────────────────────────────────────────────────────────────────────────────

    @precondition(_any_idle)
    @rule(choice=st.integers(0, 3), rewriting=st.sampled_from(["none", "white", "ids", "notes", "system"]))
    def ask(self, choice: int, rewriting: str) -> None:
        """The next message of a conversation, with its history rewritten in one of the known ways."""
        client = self._client(choice)
        history = _rewritten(client.newest.history if client.newest else [], rewriting)
        self._send(client, client.newest, history, user(self._unique("Question")), rewriting)

    @precondition(_any_idle)
    @rule(choice=st.integers(0, 3), earlier=st.integers(0, 9))
    def edit(self, choice: int, earlier: int) -> None:
        """Back to an earlier reply, and on from there with other words."""
        client = self._client(choice)
        if client.nodes:
            node = client.nodes[earlier % len(client.nodes)]
            self._send(client, node, node.history, user(self._unique("Correction")), "none")

    @precondition(_any_idle)
    @rule(choice=st.integers(0, 3))
    def send_again(self, choice: int) -> None:
        """The failed request once more."""
        client = self._client(choice)
        failed = client.failed
        if failed is None:
            return
        placement = self.server.begin(failed.messages, credential=client.credential, stream=True)
        assert (placement.kind, placement.retry_of) == (TurnKind.RETRY, failed.placement.turn_id)
        self._expect_place(client, placement, failed.parent)
        client.failed = None
        client.flying = Attempt(placement, failed.parent, failed.messages, failed.asked)

    @precondition(_any_idle)
    @rule(choice=st.integers(0, 3))
    def regenerate(self, choice: int) -> None:
        """The request that led to the newest reply once more, though it was answered."""
        client = self._client(choice)
        node = client.newest
        if node is None or node.placement.parent_id is None or client.failed is not None:
            return
        parent = next((other for other in client.nodes if other.placement.turn_id == node.placement.parent_id), None)
        if parent is not None and node.history[:-2] == parent.history and node.history[:-1] not in client.given_up:
            self._send(client, parent, parent.history, node.history[-2], "none")

    @precondition(_any_idle)
    @rule(choice=st.integers(0, 3))
    def compact(self, choice: int) -> None:
        """The history is summarised in a request of its own, and the summary takes its place."""
        client = self._client(choice)
        if client.newest is None or len(client.newest.history) < 4:
            return
        written = "\n".join(f"[{message['role']}]: {message.get('content')}" for message in client.newest.history)
        placement = self.server.begin(
            [_SUMMARY_PROMPT, user(f"<conversation>\n[User]: {written}\n</conversation>")],
            tools=False,
            credential=client.credential,
        )
        assert (placement.kind, placement.parent_id) == (TurnKind.COMPACTION, None)
        assert placement.session_id == client.session_id
        summary = self._unique("The work so far, in short, as it stands after request")
        self.server.finish(placement, assistant(f"<summary>{summary}.</summary>"))
        node = Node(placement, [user(f"What was done before:\n{summary}.")])
        client.newest = node
        client.nodes = [node]
        client.failed = None

    # ── what becomes of a request ────────────────────────────────────────────────────────────────────────────────────

    @precondition(_any_waiting)
    @rule(
        choice=st.integers(0, 3),
        text=st.sampled_from(["Done.", "Yes.", "I run the next step."]),
        calls=st.integers(0, 2),
    )
    def arrive(self, choice: int, text: str, calls: int) -> None:
        """The reply arrives whole; tools are run and their results are part of the history."""
        client = self._client(choice, is_waiting=True)
        attempt = client.flying
        assert attempt is not None
        before = attempt.parent.history if attempt.parent else []
        if any(node.history[: len(before) + 2] == [*before, attempt.asked, assistant(text)] for node in client.nodes):
            text = self._unique(text)  # two equal replies to one request are one and the same to everybody
        written = [json.dumps({"step": number, "size": 2.0}) for number in range(calls)]
        reply = calling(attempt.placement, *written, text=text) if calls else assistant(text)
        self.server.finish(attempt.placement, reply)
        results = [result(call["id"], "ok") for call in reply.get("tool_calls", ())]
        node = Node(attempt.placement, [*before, attempt.asked, reply, *results])
        client.nodes.append(node)
        client.newest, client.flying = node, None
        if attempt.parent is not None:
            attempt.parent.num_delivered += 1

    @precondition(_any_waiting)
    @rule(choice=st.integers(0, 3), partly=st.booleans())
    def break_off(self, choice: int, partly: bool) -> None:
        """Nothing arrives, or a part that the client throws away."""
        client = self._client(choice, is_waiting=True)
        attempt = client.flying
        assert attempt is not None
        if partly:
            self.server.finish(attempt.placement, assistant("Do"), delivered=False)
        else:
            self.server.fail(attempt.placement)
        client.flying, client.failed = None, attempt

    @precondition(lambda self: all(client.flying is None for client in self.clients))
    @rule()
    def restart(self) -> None:
        """The server is killed and reads its store; what it never stored cannot be sent again as a retry."""
        self.server.restart()
        stored = {turn.turn_id for turn in self.server.stored}
        for client in self.clients:
            if client.failed is not None and client.failed.placement.turn_id not in stored:
                client.given_up.append(client.failed.messages)
                client.failed = None

    # ── expectations ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _send(self, client: Client, parent: Node | None, history: list[Message], asked: Message, noise: str) -> None:
        messages = [*history, asked]
        if noise == "notes":
            messages.append(user("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnone\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"))
        placement = self.server.begin(messages, credential=client.credential)
        branches = parent is not None and parent.num_delivered > 0
        assert placement.kind is (TurnKind.BRANCH if branches else TurnKind.MAIN)
        assert placement.retry_of is None
        self._expect_place(client, placement, parent)
        if parent is not None:
            assert placement.next_state is not None
            assert placement.next_state[-1] == asked
        if client.failed is not None:
            client.given_up.append(client.failed.messages)
        client.failed = None
        client.flying = Attempt(placement, parent, messages, asked)

    def _expect_place(self, client: Client, placement: Placement, parent: Node | None) -> None:
        assert placement.parent_id == (parent.placement.turn_id if parent is not None else None)
        if parent is not None or placement.kind is TurnKind.RETRY:  # else it starts afresh
            assert placement.session_id == client.session_id
        others = {other.session_id for other in self.clients if other is not client}
        assert placement.session_id not in others
        client.session_id = placement.session_id


def _rewritten(history: list[Message], way: str) -> list[Message]:
    """The same history as another request of the same client would hold it."""
    if way == "white":
        return [
            {**message, "content": f"\n{message['content']} \n"} if message["role"] == "assistant" else message
            for message in history
        ]
    if way == "ids":  # arguments written anew, ids kept
        return [
            {
                **message,
                "tool_calls": [
                    {**call, "function": {"name": "run", "arguments": call["function"]["arguments"].replace(" ", "")}}
                    for call in message["tool_calls"]
                ],
            }
            if message.get("tool_calls")
            else message
            for message in history
        ]
    if way == "system":
        return [{"role": "system", "content": "Another system prompt."}, *history]
    return list(history)


Conversations.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestConversations = Conversations.TestCase
