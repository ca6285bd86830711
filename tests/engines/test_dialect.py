"""Messages of the dialect: what goes out can be read back, and what does not fit is refused."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slime.engines.dialect.answers import Output, aborted, answer, ran_out, stopped
from slime.engines.dialect.reading import (
    StreamReader,
    join_deltas,
    parse_completion,
    parse_scores,
    read_error,
    read_object,
)
from slime.engines.dialect.requests import Limits, UpdateCall, generate_body, parse_generate, parse_json, score_body
from slime.engines.dialect.versions import version_from_wire, version_to_wire
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
    call = parse_generate(parse_json(generate_body(REQUEST, stream=True)), "unused")
    params, asked = call.sampling_params, REQUEST.sampling
    assert (call.rid, call.input_ids) == ("r1", (5, 6, 7))
    assert (params.temperature, params.top_p, params.top_k) == (asked.temperature, asked.top_p, asked.top_k)
    assert (params.stop, params.stop_token_ids, params.sampling_seed) == (asked.stop, asked.stop_token_ids, asked.seed)
    assert (call.max_new_tokens, call.stream, call.return_logprob, call.logprob_start_len) == (9, True, True, -1)


def test_top_k_zero_means_all_and_is_written_minus_one():
    body = orjson.loads(generate_body(GenerateRequest("r", (1,), SamplingParams(top_k=0))))
    assert body["sampling_params"]["top_k"] == -1


def test_scoring_asks_from_the_token_before():
    call = parse_generate(parse_json(score_body("s", [5, 6, 7, 8], 2, top_k=3)), "unused")
    assert (call.max_new_tokens, call.logprob_start_len, call.top_logprobs_num) == (0, 1, 3)


@pytest.mark.parametrize("start", [0, 4, -1])
def test_nothing_can_be_scored_before_the_second_token_or_after_the_last(start: int):
    with pytest.raises(ValueError, match="start"):
        score_body("s", [5, 6, 7, 8], start)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input_ids": [1], "sampling_parms": {}}, "did you mean sampling_params"),
        ({"input_ids": [1], "text": "hi"}, "`text`"),
        ({"input_ids": [1], "sampling_params": {"temprature": 1}}, "did you mean temperature"),
        ({"input_ids": [1, 300]}, r"\[0, 263\)"),
        ({"input_ids": [-1]}, r"\[0, 263\)"),
        ({"input_ids": [True]}, "valid integer"),
        ({"input_ids": [1], "sampling_params": {"n": 2}}, "n must be 1: send a request for each sample"),
        ({"input_ids": [1], "sampling_params": {"stop": [""]}}, "at least 1 character"),
        ({"input_ids": [1], "sampling_params": {"temperature": "hot"}}, "valid number"),
        ({"input_ids": [1], "sampling_params": {"min_p": 2.0}}, "min_p"),
        ({"input_ids": [1], "sampling_params": {"frequency_penalty": 3.0}}, "frequency_penalty"),
        ({"input_ids": [1], "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 4}}, "min_new_tokens"),
        ({"input_ids": [1], "token_ids_logprob": [300]}, "token_ids_logprob"),
        ({"input_ids": [1] * 64}, "longer than the model's context length"),
        ({"input_ids": [1] * 5, "sampling_params": {"max_new_tokens": 60}}, "maximum context length"),
    ],
)
def test_our_engines_refuse_what_they_do_not_understand(body: dict[str, Any], message: str):
    with pytest.raises(EngineRejected, match=message):
        parse_generate(body, "r", Limits(vocab_size=263, context_len=64))


def test_an_update_needs_a_version():
    call = UpdateCall(model_path="/weights", weight_version="7", flush_cache=False)
    assert UpdateCall.read(parse_json(call.body())) == call
    for version in (None, "", "seven", "-1", 7):
        with pytest.raises(EngineRejected, match="weight_version"):
            UpdateCall.read({"model_path": "/weights", "weight_version": version})


def test_no_length_means_as_far_as_the_context_goes():
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": None}}
    assert parse_generate(body, "r", Limits(100, 64)).max_new_tokens == 61


@given(st.integers(min_value=0, max_value=10**9))
def test_versions_come_back(version: int):
    assert version_from_wire(version_to_wire(version)) == version


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

CALL = parse_generate({"input_ids": [5, 6], "return_logprob": True, "rid": "r1"}, "unused")


def _output(text: str = "Hi", **changes: Any) -> Output:
    output = Output(version=4, text=text, token_ids=[72, 105], logprobs=[-0.5, -1.25])
    output.spans = [VersionSpan(3, 0, 1), VersionSpan(4, 1, 2)]
    output.finish_reason = stopped(105)
    for name, value in changes.items():
        setattr(output, name, value)
    return output


def _wire(payload: dict[str, Any]) -> dict[str, Any]:
    return read_object(orjson.dumps(payload))


def test_an_answer_is_read_as_it_was_meant():
    completion = parse_completion(_wire(answer(CALL, _output())))
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
    payload = _wire(answer(CALL, _output()))
    spoil(payload)
    with pytest.raises(EngineError):
        parse_completion(payload)


def test_scores_must_be_of_the_tokens_asked_about():
    call = parse_generate(parse_json(score_body("s", [5, 6, 7], 2)), "unused")
    payload = _wire(answer(call, Output(input_logprobs=[-0.5], finish_reason=ran_out(0))))
    assert parse_scores(payload, [5, 6, 7], 2, 0).logprobs == (-0.5,)
    with pytest.raises(EngineError, match="token 7 stands where token 8"):
        parse_scores(payload, [5, 6, 8], 2, 0)


def test_scores_are_read_although_the_last_id_of_the_vocabulary_is_called_0():
    def answered(*entries: list[float]) -> dict[str, Any]:
        return {"meta_info": {"weight_version": "0", "input_token_logprobs": [[None, 5, None], *entries]}}

    read = parse_scores(answered([-0.5, 0], [-0.7, 6], [-0.9, 0]), [5, 99, 6, 99], 1, 0)
    assert read.logprobs == (-0.5, -0.7, -0.9)
    with pytest.raises(EngineError, match="token 0 stands where token 98"):
        parse_scores(answered([-0.5, 0], [-0.7, 0]), [5, 98, 99], 1, 0)
    with pytest.raises(EngineError, match="token 7 stands where token 6"):
        parse_scores(answered([-0.5, 0], [-0.7, 7]), [5, 99, 6], 1, 0)


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
    error = read_error(status, body)
    assert type(error) is kind
    assert message in str(error)


# ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _stream(pieces: list[str], final_text: str, *, is_incremental: bool) -> list[dict[str, Any]]:
    """Events of a reply whose token i adds pieces[i]; the last event carries the whole text as finally trimmed."""
    call = parse_generate({"input_ids": [5], "return_logprob": True, "stream": True}, "r")
    output, events = Output(), []
    for i, piece in enumerate(pieces):
        output.token_ids.append(i)
        output.logprobs.append(-float(i))
        output.text += piece
        if i == len(pieces) - 1:
            output.text = final_text
            output.finish_reason = ran_out(len(pieces))
            output.spans = [VersionSpan(0, 0, len(pieces))]
        events.append(_wire(answer(call, output, is_incremental=is_incremental)))
    return events


def _read(events: list[dict[str, Any]], stop: tuple[str, ...] = ()) -> list[Delta]:
    reader = StreamReader(stop)
    return [reader.feed(event) for event in events]


@pytest.mark.parametrize("is_incremental", [True, False])
@given(pieces=st.lists(st.text(alphabet="ab\ufffd", max_size=3), min_size=1, max_size=12))
def test_deltas_add_up_whichever_way_events_count(is_incremental: bool, pieces: list[str]):
    completion = join_deltas(_read(_stream(pieces, "".join(pieces), is_incremental=is_incremental)))
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
        join_deltas(_read(_stream(["a", "b"], "ab", is_incremental=True))[:1])


def test_a_full_queue_in_a_stream_is_unavailable():
    output = Output(finish_reason=aborted("The request queue is full.", 503))
    with pytest.raises(EngineUnavailable, match="queue is full"):
        _read([_wire(answer(CALL, output))])


def test_an_abort_while_waiting_has_no_logprob_fields():
    """As SGLang words it: no log-probs, no prompt_tokens, a span of nothing."""
    meta = {
        "id": "r2",
        "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
        "weight_version": "default",
        "weight_versions": [{"version": "default", "start": 0, "end": 0}],
        "completion_tokens": 0,
    }
    completion = parse_completion({"text": "", "output_ids": [], "meta_info": meta})
    assert (completion.finish_reason, completion.token_ids, completion.spans) == ("abort", (), ())


def test_a_nan_does_not_survive_the_wire():
    payload = answer(CALL, _output(logprobs=[math.nan, -1.0]))
    with pytest.raises(EngineError, match="log-prob of token 72"):
        parse_completion(_wire(payload))
