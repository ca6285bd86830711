"""The engine dialect: what SGLang 0.5.23's native server says on the wire, written once.

    client                                   wire (JSON)                           engine
    GenerateRequest ── generate_body ──▶ POST /generate ── parse_generate ──▶ GenerateCall
    Completion ◀─── parse_completion ─── answer ◀──────── answer ──────────── Output
    Delta ◀──────── StreamReader.feed ── data: {…} ◀───── sse(answer(…)) ──── Output, growing

Client, scripted engine and embedded engine all build and read messages here, so they cannot drift apart; what is
claimed of SGLang is asserted of the real one by tests/engines/conformance.py. Conventions worth knowing:

- Log-prob entries are `[logprob, token_id, null]`. Those of sampled tokens are of softmax(logits / temperature), before
  top-p, top-k and min-p cut it; those of prompt tokens ignore the temperature.
- `input_token_logprobs` starts at `logprob_start_len`, and its first entry is `[null, id, null]`: nothing is before it.
- Events of a stream are cumulative, or hold only what is new when the engine runs with
  `--incremental-streaming-output`; `completion_tokens` always counts all, so a reader can tell them apart.
- `weight_versions`, the spans that say which weights made which token, stand in the last answer only.
- A full queue is HTTP 503, but in a stream HTTP 200 and an `abort` finish that carries `"status_code": 503`.
- A request that was aborted while it waited is answered without any log-prob field.
- `ignore_eos` switches `stop_token_ids` off too. What stopped a reply is cut from its text, never from its ids.
"""

from slime.engines.dialect.adapter_calls import (
    LoadAdapterCall,
    adapter_from_wire,
    adapter_to_wire,
    adapters_changed,
    adapters_unchanged,
    already_loaded,
    load_adapter_body,
    model_list,
    not_loaded,
    parse_adapters,
    parse_load_adapter,
    parse_loaded,
    parse_unload_adapter,
    unload_adapter_body,
)
from slime.engines.dialect.answers import (
    DONE,
    Entry,
    Output,
    aborted,
    answer,
    error_body,
    ran_out,
    sse,
    stopped,
)
from slime.engines.dialect.reading import (
    StreamReader,
    join_deltas,
    parse_completion,
    parse_scores,
    read_error,
    read_object,
)
from slime.engines.dialect.requests import (
    PAUSE_MODES,
    GenerateCall,
    PauseMode,
    UpdateCall,
    generate_body,
    parse_generate,
    parse_json,
    parse_pause,
    parse_update,
    score_body,
    update_body,
)
from slime.engines.dialect.versions import FIRST_VERSION, extend_spans, version_from_wire, version_to_wire

__all__ = [
    "DONE",
    "FIRST_VERSION",
    "PAUSE_MODES",
    "Entry",
    "GenerateCall",
    "LoadAdapterCall",
    "Output",
    "PauseMode",
    "StreamReader",
    "UpdateCall",
    "aborted",
    "adapter_from_wire",
    "adapter_to_wire",
    "adapters_changed",
    "adapters_unchanged",
    "already_loaded",
    "answer",
    "error_body",
    "extend_spans",
    "generate_body",
    "join_deltas",
    "load_adapter_body",
    "model_list",
    "not_loaded",
    "parse_adapters",
    "parse_completion",
    "parse_generate",
    "parse_json",
    "parse_load_adapter",
    "parse_loaded",
    "parse_pause",
    "parse_scores",
    "parse_unload_adapter",
    "parse_update",
    "ran_out",
    "read_error",
    "read_object",
    "score_body",
    "sse",
    "stopped",
    "unload_adapter_body",
    "update_body",
    "version_from_wire",
    "version_to_wire",
]
