"""Requests: built by the client, read and checked by an engine.

Our engines speak a subset of SGLang's fields and refuse the rest by name; nothing is silently ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import orjson

from slime.engines.dialect.versions import FIRST_VERSION, version_from_wire, version_to_wire
from slime.errors import EngineError, EngineRejected, nearest
from slime.protocols import GenerateRequest
from slime.types import SamplingParams

Json = dict[str, Any]
PauseMode = Literal["abort", "retract", "in_place"]
PAUSE_MODES: tuple[PauseMode, ...] = get_args(PauseMode)
DEFAULT_MAX_NEW_TOKENS = 128  # when a request names none

_GENERATE_FIELDS = frozenset(
    {
        "rid",
        "input_ids",
        "sampling_params",
        "return_logprob",
        "logprob_start_len",
        "top_logprobs_num",
        "token_ids_logprob",
        "stream",
        "lora_path",
    }
)
_SAMPLING_FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "max_new_tokens",
        "min_new_tokens",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "skip_special_tokens",
        "no_stop_trim",
        "sampling_seed",
        "n",
    }
)


def generate_body(request: GenerateRequest, *, stream: bool = False, adapter: str = "") -> bytes:
    """The body of POST /generate that samples a continuation and asks for its log-probs.

    Args:
        adapter: the name under which an adapter is loaded; empty = the base alone.
    """
    sampling = request.sampling
    params: Json = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,  # ours says 0 or -1 for "all"; the wire only -1
        "min_p": sampling.min_p,
        "max_new_tokens": sampling.max_new_tokens,
        "repetition_penalty": sampling.repetition_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
    }
    if sampling.stop:
        params["stop"] = sampling.stop
    if sampling.stop_token_ids:
        params["stop_token_ids"] = sampling.stop_token_ids
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    return orjson.dumps(
        {
            "rid": request.request_id,
            "input_ids": request.prompt_ids,
            "sampling_params": params,
            "return_logprob": True,
            "stream": stream,
            **({"lora_path": adapter} if adapter else {}),
        }
    )


def score_body(request_id: str, token_ids: Sequence[int], start: int, top_k: int = 0, *, adapter: str = "") -> bytes:
    """The body of POST /generate that scores `token_ids[start:]` and samples nothing."""
    if not 1 <= start < len(token_ids):
        raise ValueError(f"start must be in 1..{len(token_ids) - 1}: the first token has nothing before it")
    return orjson.dumps(
        {
            "rid": request_id,
            "input_ids": token_ids,
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": start - 1,
            "top_logprobs_num": top_k,
            **({"lora_path": adapter} if adapter else {}),
        }
    )


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """A POST /generate as an engine understands it.

    Attributes:
        max_new_tokens: 0 = only score the prompt; None = as far as the context goes. Stands above `sampling`'s own.
        ignore_eos: neither the model's end token nor `stop_token_ids` stop it; stop strings still do.
        no_stop_trim: leave what stopped it in the text.
        logprob_start_len: first prompt position whose log-probs are wanted; -1 = none.
        token_ids_logprob: further ids whose log-probs are wanted at every position.
        adapter: the name under which an adapter is loaded; empty = the base alone.
    """

    rid: str
    input_ids: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int | None
    min_new_tokens: int = 0
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: tuple[int, ...] = ()
    stream: bool = False
    adapter: str = ""


def parse_json(raw: bytes) -> Json:
    """A request body as an object; `EngineRejected` if it is none."""
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError as error:
        raise EngineRejected(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise EngineRejected("the body must be a JSON object")
    return body


def parse_generate(body: Mapping[str, Any], new_rid: str, vocab_size: int | None = None) -> GenerateCall:
    """Read and check a request; `EngineRejected` names what is wrong with it.

    Args:
        new_rid: the name of a request that brings none.
        vocab_size: refuse ids outside of it. (The real SGLang dies of one.)
    """
    _refuse_unknown(body, _GENERATE_FIELDS, "field")
    ids = body.get("input_ids")
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
        raise EngineRejected("input_ids should be provided, as one list of integers")
    if not ids:
        raise EngineRejected("input_ids cannot be empty.")
    if min(ids) < 0 or (vocab_size is not None and max(ids) >= vocab_size):
        raise EngineRejected(f"input_ids must be in [0, {vocab_size or 'vocabulary size'})")
    params = body.get("sampling_params") or {}
    if not isinstance(params, dict):
        raise EngineRejected("sampling_params must be an object")
    start = _integer(body, "logprob_start_len", -1)
    if start > len(ids):
        raise EngineRejected(f"logprob_start_len={start} is higher than the number of input tokens {len(ids)}")
    max_new_tokens = params.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    if max_new_tokens is not None and _integer(params, "max_new_tokens", 0) < 0:
        raise EngineRejected(f"max_new_tokens must be at least 0, got {max_new_tokens}.")
    return GenerateCall(
        rid=str(body.get("rid") or new_rid),
        input_ids=tuple(ids),
        sampling=_parse_sampling(params),
        max_new_tokens=max_new_tokens,
        min_new_tokens=_integer(params, "min_new_tokens", 0),
        ignore_eos=bool(params.get("ignore_eos")),
        skip_special_tokens=bool(params.get("skip_special_tokens", True)),
        no_stop_trim=bool(params.get("no_stop_trim")),
        return_logprob=bool(body.get("return_logprob")),
        logprob_start_len=start,
        top_logprobs_num=_integer(body, "top_logprobs_num", 0),
        token_ids_logprob=_integers(body, "token_ids_logprob"),
        stream=bool(body.get("stream")),
        adapter=_adapter(body),
    )


def _adapter(body: Mapping[str, Any]) -> str:
    name = body.get("lora_path") or ""
    if not isinstance(name, str):
        raise EngineRejected("lora_path must be the name of one adapter")
    return name


def _parse_sampling(params: Json) -> SamplingParams:
    _refuse_unknown(params, _SAMPLING_FIELDS, "sampling parameter")
    if params.get("n") not in (None, 1):
        raise EngineRejected("n must be 1: send a request for each sample")
    stop = params.get("stop") or ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(one, str) and one for one in stops):
        raise EngineRejected("stop must be a string or a list of strings, none of them empty")
    top_k = _integer(params, "top_k", -1)
    if top_k != -1 and top_k < 1:
        raise EngineRejected(f"top_k must be -1 (disable) or at least 1, got {top_k}.")
    try:
        return SamplingParams(
            temperature=_number(params, "temperature", 1.0),
            top_p=_number(params, "top_p", 1.0),
            top_k=top_k,
            min_p=_number(params, "min_p", 0.0),
            repetition_penalty=_number(params, "repetition_penalty", 1.0),
            frequency_penalty=_number(params, "frequency_penalty", 0.0),
            presence_penalty=_number(params, "presence_penalty", 0.0),
            max_new_tokens=max(1, _integer(params, "max_new_tokens", DEFAULT_MAX_NEW_TOKENS)),
            stop=stops,
            stop_token_ids=_integers(params, "stop_token_ids"),
            seed=params.get("sampling_seed"),
        )
    except ValueError as error:
        raise EngineRejected(str(error)) from None


def _refuse_unknown(mapping: Mapping[str, Any], known: frozenset[str], kind: str) -> None:
    for name in mapping:
        if name not in known:
            raise EngineRejected(f"unknown {kind} `{name}`{nearest(name, known)}")


def _number(mapping: Mapping[str, Any], name: str, default: float) -> float:
    value = mapping.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EngineRejected(f"{name} must be a number, got {value!r}")
    return float(value)


def _integer(mapping: Mapping[str, Any], name: str, default: int) -> int:
    value = mapping.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise EngineRejected(f"{name} must be an integer, got {value!r}")
    return value


def _integers(mapping: Mapping[str, Any], name: str) -> tuple[int, ...]:
    value = mapping.get(name) or []
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise EngineRejected(f"{name} must be a list of integers")
    return tuple(value)


@dataclass(frozen=True, slots=True)
class UpdateCall:
    """A POST /update_weights_from_disk: serve `model_path` as `version`.

    Attributes:
        flush_cache: drop the keys and values that older weights made.
    """

    model_path: str
    version: int
    flush_cache: bool = True
    abort_all_requests: bool = False


def update_body(call: UpdateCall) -> bytes:
    return orjson.dumps(
        {
            "model_path": call.model_path,
            "weight_version": version_to_wire(call.version),
            "flush_cache": call.flush_cache,
            "abort_all_requests": call.abort_all_requests,
        }
    )


def parse_update(body: Mapping[str, Any]) -> UpdateCall:
    """Unlike SGLang's, our engines refuse an update without a version: its tokens would carry the old one."""
    path, version = body.get("model_path"), body.get("weight_version")
    if not isinstance(path, str) or not path:
        raise EngineRejected("model_path must name a directory")
    if not isinstance(version, str):
        raise EngineRejected('weight_version must be given, as a string: "7"')
    try:
        number = version_from_wire(version)
    except EngineError:
        raise EngineRejected(f'weight_version must be digits, or "{FIRST_VERSION}": {version!r}') from None
    return UpdateCall(path, number, bool(body.get("flush_cache", True)), bool(body.get("abort_all_requests")))


def parse_pause(body: Mapping[str, Any]) -> PauseMode:
    """The mode of a POST /pause_generation; SGLang's default is `abort`."""
    mode = body.get("mode", "abort")
    for known in PAUSE_MODES:
        if mode == known:
            return known
    raise EngineRejected(f"mode should be one of {', '.join(PAUSE_MODES)}, got {mode!r}")
