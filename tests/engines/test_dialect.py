"""Messages of the dialect: what goes out can be read back, and what does not fit is refused."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slime.engines import dialect
from slime.errors import EngineError, EngineRejected, EngineUnavailable
from slime.protocols import Delta, GenerateRequest
from slime.types import SamplingParams, VersionSpan

REQUEST = GenerateRequest(
    "r1",
    (5, 6, 7),
    SamplingParams(temperature=0.7, top_p=0.9, max_new_tokens=9, stop=("\n\n",), stop_token_ids=(3,), seed=4),
)


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_is_read_as_it_was_meant():
    call = dialect.parse_generate(dialect.parse_json(dialect.generate_body(REQUEST, stream=True)), "unused")
    assert (call.rid, call.input_ids, call.sampling) == ("r1", (5, 6, 7), REQUEST.sampling)
    assert (call.max_new_tokens, call.stream, call.return_logprob, call.logprob_start_len) == (9, True, True, -1)


def test_top_k_zero_means_all_and_is_written_minus_one():
    body = orjson.loads(dialect.generate_body(GenerateRequest("r", (1,), SamplingParams(top_k=0))))
    assert body["sampling_params"]["top_k"] == -1


def test_scoring_asks_from_the_token_before():
    call = dialect.parse_generate(dialect.parse_json(dialect.score_body("s", [5, 6, 7, 8], 2, top_k=3)), "unused")
    assert (call.max_new_tokens, call.logprob_start_len, call.top_logprobs_num) == (0, 1, 3)


@pytest.mark.parametrize("start", [0, 4, -1])
def test_nothing_can_be_scored_before_the_second_token_or_after_the_last(start: int):
    with pytest.raises(ValueError, match="start"):
        dialect.score_body("s", [5, 6, 7, 8], start)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input_ids": [1], "sampling_parms": {}}, "did you mean sampling_params"),
        ({"input_ids": [1], "text": "hi"}, "`text`"),
        ({"input_ids": [1], "sampling_params": {"temprature": 1}}, "did you mean temperature"),
        ({"input_ids": [1, 300]}, r"\[0, 263\)"),
        ({"input_ids": [-1]}, r"\[0, 263\)"),
        ({"input_ids": [True]}, "integers"),
        ({"input_ids": [1], "sampling_params": {"n": 2}}, "n must be 1"),
        ({"input_ids": [1], "sampling_params": {"stop": [""]}}, "empty"),
        ({"input_ids": [1], "sampling_params": {"temperature": "hot"}}, "number"),
    ],
)
def test_our_engines_refuse_what_they_do_not_understand(body: dict[str, Any], message: str):
    with pytest.raises(EngineRejected, match=message):
        dialect.parse_generate(body, "r", vocab_size=263)


def test_an_update_needs_a_version():
    call = dialect.UpdateCall("/weights", 7, flush_cache=False)
    assert dialect.parse_update(dialect.parse_json(dialect.update_body(call))) == call
    for version in (None, "", "seven", "-1", 7):
        with pytest.raises(EngineRejected, match="weight_version"):
            dialect.parse_update({"model_path": "/weights", "weight_version": version})


@given(st.integers(min_value=0, max_value=10**9))
def test_versions_come_back(version: int):
    assert dialect.version_from_wire(dialect.version_to_wire(version)) == version


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

CALL = dialect.parse_generate({"input_ids": [5, 6], "return_logprob": True, "rid": "r1"}, "unused")


def _output(text: str = "Hi", **changes: Any) -> dialect.Output:
    output = dialect.Output(2, version=4, text=text, token_ids=[72, 105], logprobs=[-0.5, -1.25])
    output.spans = [VersionSpan(3, 0, 1), VersionSpan(4, 1, 2)]
    output.finish_reason = dialect.stopped(105)
    for name, value in changes.items():
        setattr(output, name, value)
    return output


def _wire(payload: dict[str, Any]) -> dict[str, Any]:
    return dialect.read_object(orjson.dumps(payload))


def test_an_answer_is_read_as_it_was_meant():
    completion = dialect.parse_completion(_wire(dialect.answer(CALL, _output())))
    assert (completion.token_ids, completion.logprobs, completion.text) == ((72, 105), (-0.5, -1.25), "Hi")
    assert (completion.finish_reason, completion.policy_versions) == ("stop", (3, 4))


def _without(payload: dict[str, Any], name: str) -> None:
    del payload["meta_info"][name]


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("no log-probs", lambda p: _without(p, "output_token_logprobs")),
        ("no spans", lambda p: _without(p, "weight_versions")),
        ("a log-prob too few", lambda p: p["meta_info"]["output_token_logprobs"].pop()),
        ("an id too few", lambda p: p["output_ids"].pop()),
        ("the log-prob of another token", lambda p: p["meta_info"]["output_token_logprobs"][0].__setitem__(1, 9)),
        ("no number", lambda p: p["meta_info"]["output_token_logprobs"][0].__setitem__(0, None)),
        ("a probability above one", lambda p: p["meta_info"]["output_token_logprobs"][0].__setitem__(0, 0.5)),
        ("a gap between spans", lambda p: p["meta_info"]["weight_versions"].pop(0)),
        ("a version of somebody else", lambda p: p["meta_info"].__setitem__("weight_version", "v4")),
        ("not finished", lambda p: p["meta_info"].__setitem__("finish_reason", None)),
        ("no ids", lambda p: p.pop("output_ids")),
        ("ids that are none", lambda p: p.__setitem__("output_ids", None)),
    ],
)
def test_an_answer_that_contradicts_itself_is_an_error(name: str, spoil: Any):
    payload = _wire(dialect.answer(CALL, _output()))
    spoil(payload)
    with pytest.raises(EngineError):
        dialect.parse_completion(payload)


def test_scores_must_be_of_the_tokens_asked_about():
    output = dialect.Output(3, input_logprobs=[(None, 6, None), (-0.5, 7, None)], finish_reason=dialect.ran_out(0))
    payload = _wire(dialect.answer(CALL, output))
    assert dialect.parse_scores(payload, [5, 6, 7], 2, 0).logprobs == (-0.5,)
    with pytest.raises(EngineError, match="token 7 stands where token 8"):
        dialect.parse_scores(payload, [5, 6, 8], 2, 0)


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, b'{"error": {"message": "top_p is wrong"}}', EngineRejected, "top_p is wrong"),
        (400, b'{"error": "unknown field"}', EngineRejected, "unknown field"),
        (503, b'{"object": "error", "message": "The request queue is full."}', EngineUnavailable, "queue is full"),
        (429, b"{}", EngineUnavailable, "429"),
        (502, b"<html>Bad Gateway</html>", EngineUnavailable, "Bad Gateway"),
        (404, b'{"detail": "Not Found"}', EngineRejected, "Not Found"),
    ],
)
def test_errors_keep_their_kind_and_words(status: int, body: bytes, kind: type[EngineError], message: str):
    error = dialect.read_error(status, body)
    assert type(error) is kind
    assert message in str(error)


# ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _stream(pieces: list[str], final_text: str, *, is_incremental: bool) -> list[dict[str, Any]]:
    """Events of a reply whose token i adds pieces[i]; the last event carries the whole text as finally trimmed."""
    call = dialect.parse_generate({"input_ids": [5], "return_logprob": True, "stream": True}, "r")
    output = dialect.Output(1)
    events, num_sent, num_chars = [], 0, 0
    for i, piece in enumerate(pieces):
        output.token_ids.append(i)
        output.logprobs.append(-float(i))
        output.text += piece
        if i == len(pieces) - 1:
            output.text = final_text
            output.finish_reason = dialect.ran_out(len(pieces))
            output.spans = [VersionSpan(0, 0, len(pieces))]
        events.append(_wire(dialect.answer(call, output, tokens_sent=num_sent, chars_sent=num_chars)))
        if is_incremental:
            num_sent, num_chars = len(output.token_ids), len(output.text)
    return events


def _read(events: list[dict[str, Any]], stop: tuple[str, ...] = ()) -> list[Delta]:
    reader = dialect.StreamReader(stop)
    return [reader.feed(event) for event in events]


@pytest.mark.parametrize("is_incremental", [True, False])
@given(pieces=st.lists(st.text(alphabet="ab\ufffd", max_size=3), min_size=1, max_size=12))
def test_deltas_add_up_whichever_way_events_count(is_incremental: bool, pieces: list[str]):
    completion = dialect.join_deltas(_read(_stream(pieces, "".join(pieces), is_incremental=is_incremental)))
    assert completion.text == "".join(pieces)
    assert completion.token_ids == tuple(range(len(pieces)))
    assert completion.logprobs == tuple(-float(i) for i in range(len(pieces)))


@given(
    pieces=st.lists(st.text(alphabet="ab", min_size=1, max_size=3), min_size=1, max_size=12),
    stop=st.text(alphabet="ab", min_size=1, max_size=4),
)
def test_no_part_of_a_stop_string_is_shown(pieces: list[str], stop: str):
    spoken: list[str] = []
    for piece in pieces:  # an engine stops at the token that completes the stop string
        spoken.append(piece)
        if stop in "".join(spoken):
            break
    text = "".join(spoken)
    trimmed = text[: text.index(stop)] if stop in text else text
    deltas = _read(_stream(spoken, trimmed, is_incremental=False), (stop,))
    assert "".join(delta.text for delta in deltas) == trimmed


def test_a_character_in_pieces_is_shown_whole():
    events = _stream(["a", "\ufffd", ""], "aé", is_incremental=False)
    assert [delta.text for delta in _read(events)] == ["a", "", "é"]


def test_a_stream_that_loses_tokens_is_an_error():
    events = _stream(["a", "b", "c"], "abc", is_incremental=True)
    with pytest.raises(EngineError, match="announced"):
        _read([events[0], events[2]])


def test_a_stream_that_breaks_off_is_no_completion():
    with pytest.raises(EngineError, match="before its last delta"):
        dialect.join_deltas(_read(_stream(["a", "b"], "ab", is_incremental=True))[:1])


def test_a_full_queue_in_a_stream_is_unavailable():
    output = dialect.Output(1, finish_reason=dialect.aborted("The request queue is full.", 503))
    with pytest.raises(EngineUnavailable, match="queue is full"):
        _read([_wire(dialect.answer(CALL, output))])


def test_an_abort_while_waiting_has_no_logprob_fields():
    """As SGLang words it: no log-probs, no prompt_tokens, a span of nothing."""
    meta = {
        "id": "r2",
        "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
        "weight_version": "default",
        "weight_versions": [{"version": "default", "start": 0, "end": 0}],
        "completion_tokens": 0,
    }
    completion = dialect.parse_completion({"text": "", "output_ids": [], "meta_info": meta})
    assert (completion.finish_reason, completion.token_ids, completion.spans) == ("abort", (), ())


def test_a_nan_does_not_survive_the_wire():
    payload = dialect.answer(CALL, _output(logprobs=[math.nan, -1.0]))
    with pytest.raises(EngineError, match="log-prob of token 72"):
        dialect.parse_completion(_wire(payload))
