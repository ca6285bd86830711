"""What engines with a model do beyond `conformance`: truncated sampling and reuse of keys and values."""

from __future__ import annotations

import pytest
from rig import PROMPT, Rig


@pytest.mark.parametrize("truncation", [{"top_p": 0.4}, {"top_k": 2}, {"min_p": 0.6}])
def test_truncated_sampling_reports_logprobs_from_before_the_cut(rig: Rig, truncation: dict[str, float]):
    answer = rig.generate(max_new_tokens=24, top_logprobs_num=2, **truncation)
    meta = answer["meta_info"]
    expected = rig.oracle([*PROMPT, *answer["output_ids"]], 0, 1.0)[len(PROMPT) - 1 :]
    assert [entry[0] for entry in meta["output_token_logprobs"]] == pytest.approx(expected, abs=rig.tolerance)
    if "top_k" in truncation:
        likely = [{entry[1] for entry in row} for row in meta["output_top_logprobs"]]
        assert all(token_id in row for token_id, row in zip(answer["output_ids"], likely, strict=True))


def test_greedy_takes_the_likeliest(rig: Rig):
    answer = rig.generate(temperature=0.0, max_new_tokens=12, top_logprobs_num=1)
    assert answer["output_ids"] == [row[0][1] for row in answer["meta_info"]["output_top_logprobs"]]


def test_a_prompt_seen_before_is_reused_and_scores_the_same(rig: Rig):
    rig.post("/flush_cache")
    first = rig.generate(temperature=0.0, max_new_tokens=20)
    longer = [*PROMPT, *first["output_ids"], 11, 12, 13]
    second = rig.generate(input_ids=longer, temperature=1.0, max_new_tokens=20)
    assert first["meta_info"]["cached_tokens"] == 0
    assert second["meta_info"]["cached_tokens"] >= len(PROMPT)
    expected = rig.oracle([*longer, *second["output_ids"]], 0, 1.0)[len(longer) - 1 :]
    assert [e[0] for e in second["meta_info"]["output_token_logprobs"]] == pytest.approx(expected, abs=rig.tolerance)
