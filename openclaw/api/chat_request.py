"""The body of `/v1/chat/completions`, checked field by field before anything is done with it.

    bytes ─ json_object ─▶ dict ─ parse_chat_request ─▶ ChatRequest      or ApiError 400 that names the field

Fields that nobody here knows are ignored, as clients send many. Fields that would change what is sampled, and that
this server cannot honour (several choices, logit biases, images), are refused. `tool_choice: "required"` and
`response_format` are taken as wishes: the model is not forced, so that its log-probs stay those of its own policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slime.errors import nearest
from slime.types import Message, SamplingParams

from openclaw.api.errors import bad_request, shown

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MIN_TEMPERATURE = 1e-5
MAX_MESSAGES, MAX_TOOLS, MAX_PARTS = 4_096, 1_024, 4_096
"""Of one request, and text parts and tool calls of one message: what clients send is a tenth of it."""
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


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
    """Check a body. Raises ApiError 400 with the field in `param`."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request("messages must be a list with at least one message", "messages")
    if len(messages) > MAX_MESSAGES:
        raise bad_request(f"{len(messages)} messages are more than the {MAX_MESSAGES} of one request", "messages")
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]")
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


# ---- messages and tools


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise bad_request("a message must be an object", where)
    role = message.get("role")
    if role not in ROLES:
        hint = nearest(role[:80], ROLES) if isinstance(role, str) else ""
        raise bad_request(f"role {shown(role)} is not one of {', '.join(ROLES)}{hint}", f"{where}.role")
    content = message.get("content")
    if isinstance(content, list):
        if len(content) > MAX_PARTS:
            raise bad_request(f"a message takes {MAX_PARTS} parts, not {len(content)}", f"{where}.content")
        for index, part in enumerate(content):
            _check_part(part, f"{where}.content[{index}]")
    elif content is None and role != "assistant":
        raise bad_request(f"a {role} message needs content", f"{where}.content")
    elif content is not None and not isinstance(content, str):
        raise bad_request("content must be a string or a list of parts", f"{where}.content")
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise bad_request("tool_calls must be a list", f"{where}.tool_calls")
        if len(calls) > MAX_PARTS:
            raise bad_request(f"a message takes {MAX_PARTS} tool calls, not {len(calls)}", f"{where}.tool_calls")
        for index, call in enumerate(calls):
            _check_call(call, f"{where}.tool_calls[{index}]")


def _check_part(part: Any, where: str) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise bad_request("a content part must be an object with a type", where)
    kind = part["type"]
    if kind not in TEXT_PARTS:
        raise bad_request(
            f"content of type {shown(kind)} is not supported: this model reads text only", f"{where}.type"
        )
    if not isinstance(part.get("refusal" if kind == "refusal" else "text"), str):
        raise bad_request("a text part needs its text as a string", f"{where}.text")


def _check_call(call: Any, where: str) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request("a tool call needs a function with a name", f"{where}.function")
    if not isinstance(function.get("arguments", ""), str | dict):
        raise bad_request("arguments must be a string", f"{where}.function.arguments")


def _tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    tools = body.get("tools") or []
    if body.get("functions"):
        raise bad_request("functions are no longer supported; use tools", "functions")
    if not isinstance(tools, list):
        raise bad_request("tools must be a list", "tools")
    if len(tools) > MAX_TOOLS:
        raise bad_request(f"{len(tools)} tools are more than the {MAX_TOOLS} of one request", "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type", "function") != "function":
            raise bad_request("only tools of type 'function', with a function, are supported", f"tools[{index}]")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise bad_request("a function needs a name", f"tools[{index}].function.name")
    return tools


# ---- sampling


def _sampling(body: dict[str, Any], default_max_tokens: int) -> SamplingParams:
    limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    seed = body.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise bad_request("seed must be an integer", "seed")
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
        raise bad_request(f"temperature must be 0 or at least {MIN_TEMPERATURE:g}, not {shown(value)}", "temperature")
    return value


def _stop(stop: Any) -> tuple[str, ...]:
    entries = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise bad_request("stop must be a string or a list of strings", "stop")
    return tuple(entry for entry in entries if entry)


def _refuse_unsupported(body: dict[str, Any]) -> None:
    if body.get("n") not in (None, 1):
        raise bad_request("n must be 1: send the request again for another choice", "n")
    if body.get("top_logprobs"):
        raise bad_request("top_logprobs is not supported; logprobs gives those of the sampled tokens", "top_logprobs")
    if body.get("logit_bias"):
        raise bad_request("logit_bias is not supported", "logit_bias")
    if body.get("audio") or "audio" in (body.get("modalities") or ()):
        raise bad_request("audio is not supported: this model writes text only", "modalities")


def _stream_options(body: dict[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise bad_request("stream_options must be an object", "stream_options")
    return options or {}


def _template_options(body: dict[str, Any]) -> dict[str, Any]:
    """`enable_thinking`, at the top or among `chat_template_kwargs`, the places where servers look for it."""
    given = body.get("chat_template_kwargs") or {}
    if not isinstance(given, dict):
        raise bad_request("chat_template_kwargs must be an object", "chat_template_kwargs")
    for name in given:
        if name != "enable_thinking":
            raise bad_request(
                f"template variable {shown(name)} is not offered, only enable_thinking", "chat_template_kwargs"
            )
    thinking = given.get("enable_thinking", body.get("enable_thinking"))
    if thinking is None:
        return {}
    if not isinstance(thinking, bool):
        raise bad_request("enable_thinking must be true or false", "enable_thinking")
    return {"enable_thinking": thinking}


# ---- plain values


def _flag(body: dict[str, Any], name: str, param: str = "") -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad_request(f"{name} must be true or false", param or name)
    return bool(value)


def _number(body: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_request(f"{name} must be a number", name)
    if not low <= value <= high:
        raise bad_request(f"{name} must be between {low:g} and {high:g}, not {shown(value)}", name)
    return float(value)


def _integer(body: dict[str, Any], name: str, default: int, low: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request(f"{name} must be an integer", name)
    if value < low:
        raise bad_request(f"{name} must be at least {low}, not {shown(value)}", name)
    return value
