"""Requests: built by the client, read and checked by an engine.

A model declares each request once: fields of the wire, their defaults and bounds; `read` parses with it. Our engines
speak a subset of SGLang's fields and refuse every other field of a generation; nothing of it is silently ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)

from slime.engines.dialect.versions import FIRST_VERSION, is_version, version_from_wire
from slime.errors import EngineRejected, nearest, shown
from slime.protocols import GenerateRequest
from slime.types import SamplingParams

Json = dict[str, Any]
PauseMode = Literal["abort", "retract", "in_place"]


def _rule(holds: Callable[[Any], bool], rule: str) -> AfterValidator:
    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(rule)
        return value

    return AfterValidator(check)


_Int = Annotated[int, Strict()]
_Count = Annotated[int, Strict(), Field(ge=0)]
_Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1)]
_Stops = Annotated[tuple[_Name, ...], BeforeValidator(lambda stop: (stop,) if isinstance(stop, str) else stop)]
_Version = Annotated[str, Strict(), _rule(is_version, f'must be a string of digits, or "{FIRST_VERSION}"')]


class Call(BaseModel):
    """A request as an engine understands it. Where null is no value of a field, it stands for the default."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if value is not None or cls._takes_null(name)}

    @classmethod
    def _takes_null(cls, name: str) -> bool:
        return name not in cls.model_fields or NoneType in get_args(cls.model_fields[name].annotation)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Self:
        """Check a request's body; `EngineRejected` names the first field that is wrong, and how."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            known = Sampling.model_fields if len(first["loc"]) > 1 else cls.model_fields
            raise EngineRejected(f"unknown field `{name}`{nearest(str(first['loc'][-1]), known)}")
        raise EngineRejected(f"{name} {first['msg'].removeprefix('Value error, ')}, got {shown(first['input'])}")

    def body(self) -> bytes:
        """The body of the request, as the client sends it."""
        return self.model_dump_json().encode()


class Sampling(Call):
    """How a reply is sampled.

    Attributes:
        max_new_tokens: 0 = only score the prompt; None = as far as the context goes.
        ignore_eos: neither the model's end token nor `stop_token_ids` stop it; stop strings still do.
        no_stop_trim: leave what stopped it in the text.
    """

    model_config = ConfigDict(extra="forbid")

    temperature: Annotated[_Number, Field(ge=0)] = 1.0
    top_p: Annotated[_Number, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[_Int, _rule(lambda k: k == -1 or k >= 1, "must be -1 (disable) or at least 1")] = -1
    min_p: Annotated[_Number, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[_Number, Field(ge=1e-6, le=2)] = 1.0
    frequency_penalty: Annotated[_Number, Field(ge=-2, le=2)] = 0.0
    presence_penalty: Annotated[_Number, Field(ge=-2, le=2)] = 0.0
    max_new_tokens: _Count | None = 128
    min_new_tokens: _Count = 0
    stop: _Stops = ()
    stop_token_ids: tuple[_Int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    sampling_seed: _Int | None = None
    n: Annotated[_Int, _rule(lambda n: n == 1, "must be 1: send a request for each sample")] = 1


_SHARED = tuple(name for name in Sampling.model_fields if name in SamplingParams.__dataclass_fields__)
"""What a `SamplingParams` calls as the wire does: all but its seed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a generation is checked against: the model's vocabulary, and the longest prompt plus reply."""

    vocab_size: int = 1 << 31
    context_len: int = 1 << 31


class GenerateCall(Call):
    """A POST /generate.

    Attributes:
        logprob_start_len: first prompt position whose log-probs are wanted; -1 = none.
        token_ids_logprob: further ids whose log-probs are wanted at every position.
        lora_path: the name under which an adapter is loaded; empty = the base alone.
    """

    model_config = ConfigDict(extra="forbid")

    rid: str = ""
    input_ids: Annotated[tuple[_Int, ...], Field(min_length=1)]
    sampling_params: Sampling = Sampling()
    return_logprob: bool = False
    logprob_start_len: Annotated[_Int, Field(ge=-1)] = -1
    top_logprobs_num: _Count = 0
    token_ids_logprob: tuple[_Int, ...] = ()
    stream: bool = False
    lora_path: str = ""

    @property
    def score_start(self) -> int:
        """First prompt position whose log-prob is wanted; the prompt's length when none is."""
        return self.logprob_start_len if self.return_logprob and self.logprob_start_len >= 0 else len(self.input_ids)

    @property
    def max_new_tokens(self) -> int:
        """How many tokens may be sampled, as `parse_generate` has settled it; 0 = only score the prompt."""
        return self.sampling_params.max_new_tokens or 0


class UpdateCall(Call):
    """A POST /update_weights_from_disk: serve `model_path` as `weight_version`.

    Unlike SGLang's, our engines refuse one without a version: its tokens would carry the old one.

    Attributes:
        flush_cache: drop the keys and values that older weights made.
    """

    model_path: _Name
    weight_version: _Version
    flush_cache: bool = True
    abort_all_requests: bool = False

    @property
    def version(self) -> int:
        return version_from_wire(self.weight_version)


class PauseCall(Call):
    """A POST /pause_generation; SGLang's default is `abort`."""

    mode: PauseMode = "abort"


class AbortCall(Call):
    """A POST /abort_request: end one request, or all."""

    rid: str = ""
    abort_all: bool = False


class UnloadAdapterCall(Call):
    """A POST /unload_lora_adapter."""

    lora_name: _Name


class LoadAdapterCall(UnloadAdapterCall):
    """A POST /load_lora_adapter: serve the adapter in `lora_path` to requests that name `lora_name`."""

    lora_path: _Name


def generate_body(request: GenerateRequest, *, stream: bool = False, adapter: str = "") -> bytes:
    """The body of POST /generate that samples a continuation and asks for its log-probs.

    Args:
        adapter: the name under which an adapter is loaded; empty = the base alone.
    """
    sampling = request.sampling
    params = {name: value for name in _SHARED if (value := getattr(sampling, name)) != ()}
    params["top_k"] = sampling.top_k or -1  # ours says 0 or -1 for "all"; the wire only -1
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    return _body(request.request_id, request.prompt_ids, adapter, sampling_params=params, stream=stream)


def score_body(request_id: str, token_ids: Sequence[int], start: int, top_k: int = 0, *, adapter: str = "") -> bytes:
    """The body of POST /generate that scores `token_ids[start:]` and samples nothing."""
    if not 1 <= start < len(token_ids):
        raise ValueError(f"start must be in 1..{len(token_ids) - 1}: the first token has nothing before it")
    params = {"max_new_tokens": 0, "temperature": 1.0}
    wanted = {"logprob_start_len": start - 1, "top_logprobs_num": top_k}
    return _body(request_id, token_ids, adapter, sampling_params=params, **wanted)


def _body(rid: str, input_ids: Sequence[int], adapter: str, **fields: Any) -> bytes:
    named = {"lora_path": adapter} if adapter else {}
    return orjson.dumps({"rid": rid, "input_ids": input_ids, "return_logprob": True, **fields, **named})


def parse_json(raw: bytes) -> Json:
    """A request body as an object; `EngineRejected` if it is none."""
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError as error:
        raise EngineRejected(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise EngineRejected("the body must be a JSON object")
    return body


def parse_generate(body: Mapping[str, Any], new_rid: str, limits: Limits = Limits()) -> GenerateCall:
    """Read and check a generation; `EngineRejected` names what is wrong with it. The real SGLang dies of an id
    outside the vocabulary.

    Args:
        new_rid: the name of a request that brings none.
    """
    call = GenerateCall.read({**body, "rid": body.get("rid") or new_rid})
    params, num_prompt, context_len = call.sampling_params, len(call.input_ids), limits.context_len
    for name, ids in (("input_ids", call.input_ids), ("token_ids_logprob", call.token_ids_logprob)):
        if ids and not 0 <= min(ids) <= max(ids) < limits.vocab_size:
            raise EngineRejected(f"{name} must be in [0, {limits.vocab_size}), the vocabulary")
    if call.logprob_start_len > num_prompt:
        raise EngineRejected(f"logprob_start_len={call.logprob_start_len} is higher than the {num_prompt} input tokens")
    room = context_len - num_prompt
    if room <= 0:
        raise EngineRejected(
            f"The input ({num_prompt} tokens) is longer than the model's context length ({context_len} tokens)."
        )
    if params.max_new_tokens is None:
        params = params.model_copy(update={"max_new_tokens": room})
        call = call.model_copy(update={"sampling_params": params})
    if call.max_new_tokens > room:
        raise EngineRejected(
            "Requested token count exceeds the model's maximum context length: "
            f"{num_prompt} of the input and {call.max_new_tokens} new ones are more than {context_len} tokens."
        )
    if params.min_new_tokens > call.max_new_tokens:
        raise EngineRejected(
            f"min_new_tokens must be in [0, max_new_tokens({call.max_new_tokens})], got {params.min_new_tokens}."
        )
    return call
