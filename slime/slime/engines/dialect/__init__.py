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
- Among the log-probs of a prompt SGLang calls the last id of the vocabulary 0; the log-prob is that id's own.
- Events of a stream are cumulative, or hold only what is new when the engine runs with
  `--incremental-streaming-output`; `completion_tokens` always counts all, so a reader can tell them apart.
- `weight_versions`, the spans that say which weights made which token, stand in the last answer only.
- A full queue is HTTP 503, but in a stream HTTP 200 and an `abort` finish that carries `"status_code": 503`.
- A request that was aborted while it waited is answered without any log-prob field.
- `ignore_eos` switches `stop_token_ids` off too. What stopped a reply is cut from its text, never from its ids.

Adapters are loaded beside the base under a name, named by the requests that want them, and listed as models:

    POST /load_lora_adapter   {"lora_name": "ada@7", "lora_path": "/…"} ─▶ {"success": true, "loaded_adapters": {…}}
    POST /generate            {…, "lora_path": "ada@7"}                 ─▶ every token is made by version 7
    POST /unload_lora_adapter {"lora_name": "ada@7"}
    GET  /v1/models           {"data": [{"id": "model"}, {"id": "ada@7", "parent": "model", …}]}

What is loaded under a name never changes: a new version is loaded under a new name, `<adapter>@<version>`, and a
request keeps to its end the one it began with. So an engine that knows nothing of versions (SGLang's `weight_version`
is that of the base) still says which version made a token, and no keys and values outlive the weights they came from.
"""
