"""The body of `/v1/chat/completions`, checked field by field before anything is done with it.

    bytes ─ json_object ─▶ dict ─ parse_chat_request ─▶ ChatRequest      or RequestError that names the field

Fields that nobody here knows are ignored, as clients send many. Fields that would change what is sampled, and that
this server cannot honour (several choices, logit biases, images), are refused. `tool_choice: "required"` and
`response_format` are taken as wishes: the model is not forced, so that its log-probs stay those of its own policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slime.errors import RequestError, shown
from slime.messages import read_message
from slime.types import Message, SamplingParams

MIN_TEMPERATURE = 1e-5
MAX_MESSAGES, MAX_TOOLS = 4_096, 1_024
"""Of one request: what clients send is a tenth of it."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client asks for.

    Attributes:
        messages, tools: as they came.
        offers_tools: whether the model may call the tools; not with `tool_choice: "none"`.
        sampling: its `max_new_tokens` is the client's wish or the default, not yet cut to the context window.
        wants_logprobs: log-probs of the sampled tokens in the reply.
        template_options: variables for the chat template, e.g. `{"enable_thinking": False}`.
    """

    messages: list[Message]
    tools: list[dict[str, Any]]
    offers_tools: bool
    sampling: SamplingParams
    stream: bool
    include_usage: bool
    wants_logprobs: bool
    template_options: dict[str, Any]


def parse_chat_request(body: dict[str, Any], default_max_tokens: int) -> ChatRequest:
    """Check a body. Raises RequestError with the field."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a list with at least one message", "messages")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"{len(messages)} messages are more than the {MAX_MESSAGES} of one request", "messages")
    for index, message in enumerate(messages):
        read_message(message, f"messages[{index}]")
    tools = _tools(body)
    _refuse_unsupported(body)
    options = _stream_options(body)
    return ChatRequest(
        messages=messages,
        tools=tools,
        offers_tools=bool(tools) and body.get("tool_choice") != "none",
        sampling=_sampling(body, default_max_tokens),
        stream=_flag(body, "stream"),
        include_usage=_flag(options, "include_usage", "stream_options.include_usage"),
        wants_logprobs=_flag(body, "logprobs"),
        template_options=_template_options(body),
    )


# ---- tools


def _tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    tools = body.get("tools") or []
    if body.get("functions"):
        raise RequestError("functions are no longer supported; use tools", "functions")
    if not isinstance(tools, list):
        raise RequestError("tools must be a list", "tools")
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"{len(tools)} tools are more than the {MAX_TOOLS} of one request", "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type", "function") != "function":
            raise RequestError("only tools of type 'function', with a function, are supported", f"tools[{index}]")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise RequestError("a function needs a name", f"tools[{index}].function.name")
    return tools


# ---- sampling


def _sampling(body: dict[str, Any], default_max_tokens: int) -> SamplingParams:
    limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    seed = body.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise RequestError("seed must be an integer", "seed")
    return SamplingParams(
        temperature=_temperature(body),
        top_p=_number(body, "top_p", 1.0, 1e-9, 1.0),
        top_k=_integer(body, "top_k", -1, -1),
        min_p=_number(body, "min_p", 0.0, 0.0, 1.0),
        repetition_penalty=_number(body, "repetition_penalty", 1.0, 1e-9, 2.0),
        frequency_penalty=_number(body, "frequency_penalty", 0.0, -2.0, 2.0),
        presence_penalty=_number(body, "presence_penalty", 0.0, -2.0, 2.0),
        max_new_tokens=_integer(body, limit, default_max_tokens, 1),
        stop=_stop(body.get("stop")),
        seed=seed,
    )


def _temperature(body: dict[str, Any]) -> float:
    """Greedy, or large enough that logits divided by it stay finite."""
    value = _number(body, "temperature", 1.0, 0.0, 100.0)
    if 0.0 < value < MIN_TEMPERATURE:
        raise RequestError(f"temperature must be 0 or at least {MIN_TEMPERATURE:g}, not {shown(value)}", "temperature")
    return value


def _stop(stop: Any) -> tuple[str, ...]:
    entries = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise RequestError("stop must be a string or a list of strings", "stop")
    return tuple(entry for entry in entries if entry)


def _refuse_unsupported(body: dict[str, Any]) -> None:
    if body.get("n") not in (None, 1):
        raise RequestError("n must be 1: send the request again for another choice", "n")
    if body.get("top_logprobs"):
        raise RequestError("top_logprobs is not supported; logprobs gives those of the sampled tokens", "top_logprobs")
    if body.get("logit_bias"):
        raise RequestError("logit_bias is not supported", "logit_bias")
    if body.get("audio") or "audio" in (body.get("modalities") or ()):
        raise RequestError("audio is not supported: this model writes text only", "modalities")


def _stream_options(body: dict[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise RequestError("stream_options must be an object", "stream_options")
    return options or {}


def _template_options(body: dict[str, Any]) -> dict[str, Any]:
    """`enable_thinking`, at the top or among `chat_template_kwargs`, the places where servers look for it."""
    given = body.get("chat_template_kwargs") or {}
    if not isinstance(given, dict):
        raise RequestError("chat_template_kwargs must be an object", "chat_template_kwargs")
    for name in given:
        if name != "enable_thinking":
            raise RequestError(
                f"template variable {shown(name)} is not offered, only enable_thinking", "chat_template_kwargs"
            )
    thinking = given.get("enable_thinking", body.get("enable_thinking"))
    if thinking is None:
        return {}
    if not isinstance(thinking, bool):
        raise RequestError("enable_thinking must be true or false", "enable_thinking")
    return {"enable_thinking": thinking}


# ---- plain values


def _flag(body: dict[str, Any], name: str, param: str = "") -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false", param or name)
    return bool(value)


def _number(body: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number", name)
    if not low <= value <= high:
        raise RequestError(f"{name} must be between {low:g} and {high:g}, not {shown(value)}", name)
    return float(value)


def _integer(body: dict[str, Any], name: str, default: int, low: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer", name)
    if value < low:
        raise RequestError(f"{name} must be at least {low}, not {shown(value)}", name)
    return value
