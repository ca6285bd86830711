"""Messages become the token ids an engine is fed, through the model's own chat template.

    messages, tools ─ plain ─▶ neutralise ─▶ restore our replies ─▶ template ─▶ text ─▶ ids
                               (control tokens   (from the prior turn)              │
                               in what people    ┌──────────────────────────────────┘
                               wrote are split)  └─ begins with what the prior turn was fed and sampled?
                                                    then those very ids, and only the rest is tokenised

Reuse of the prior ids is what lets several turns of a session become one training sample, and what lets
the engine reuse its KV cache: tokenising a sampled reply again may give other ids for the same text.

What people and tools write must never become a control token: before the template sees a text, every
token of the vocabulary that stands spelled out in it is cut in two by a mark that no text may contain
(the noncharacter U+FDD0), and at the mark the rendered text is tokenised in separate pieces.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from slime.chat import nesting
from slime.chat.reply_parser import THINK_CLOSE, THINK_OPEN, ReplyParser
from slime.chat.tokenizer_files import BYTE_OF_CHAR, FileTokenizer, compile_template, read_tokenizer
from slime.errors import ConfigError, PromptTooLong, RenderError
from slime.messages import parts_of
from slime.sized_cache import SizedCache
from slime.types import Message, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_MARK = "\ufdd0"
_MAX_REMEMBERED_CHARS = 32_000_000
_MAX_SEGMENT_CHARS = 16_000_000
_SLICE = 1 << 14  # characters that are searched without a pause
_PIECE = 1 << 16  # bytes that are tokenised at once, at most
_LINES = re.compile(r".*\n(?=\S)", re.S)
_INLINE_THOUGHT = re.compile(rf"\s*{THINK_OPEN}(.*?){THINK_CLOSE}\s*", re.S)


@dataclass(frozen=True, slots=True)
class _Fed:
    """What one prompt was made of: the messages as the template saw them, and the text it made of them."""

    messages: tuple[Message, ...]
    text: str


class ChatFormat:
    """The chat template and tokenizer of one model. Safe to use from several threads.

    Attributes:
        model_dir: where it was loaded from.
        stop_token_ids: ids that end a reply, e.g. `(151645,)`.

    >>> chat = ChatFormat.load(model_dir)
    >>> chat.render([{"role": "user", "content": "Hi"}])
    (151644, 872, 198, 13048, 151645, 198, 151644, 77091, 198)
    """

    def __init__(self, tokenizer: FileTokenizer | PreTrainedTokenizerFast) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(f"{tokenizer.name_or_path}: the tokenizer has no chat template")
        self.model_dir = Path(tokenizer.name_or_path)
        self._template = compile_template(str(tokenizer.chat_template))
        self._special_tokens = dict(tokenizer.special_tokens_map)
        self._backend = tokenizer.backend_tokenizer
        eos = self._special_tokens.get("eos_token")
        eos_id = None if eos is None else self._backend.token_to_id(str(eos))
        self.stop_token_ids: tuple[int, ...] = () if eos_id is None else (eos_id,)
        added = self._backend.get_added_tokens_decoder()
        self._control_ids = {token.content: number for number, token in added.items()}
        controls = sorted(self._control_ids, key=len, reverse=True)
        self._openers = {control[0] for control in controls}
        self._longest_control = max(map(len, controls), default=0)
        self._control = re.compile("(" + "|".join(map(re.escape, controls)) + ")" if controls else r"((?!))")
        self._recent: SizedCache[tuple[int, ...], _Fed] = SizedCache(_MAX_REMEMBERED_CHARS)
        self._segments: SizedCache[str, tuple[int, ...]] = SizedCache(_MAX_SEGMENT_CHARS)
        self._takes_argument_text = self._keeps_argument_text()
        self._segments_stand_alone = self._cuts_at_controls()
        self.token_text: Callable[[int], tuple[str, tuple[int, ...]]] = lru_cache(maxsize=200_000)(self._spell)

    @classmethod
    def load(cls, model_dir: str | Path) -> ChatFormat:
        """Raises: ConfigError when the directory holds no fast tokenizer with a chat template."""
        if not Path(model_dir).is_dir():
            raise ConfigError(f"model directory {str(model_dir)!r} does not exist")
        if (read := read_tokenizer(Path(model_dir))) is not None:
            return cls(read)
        from transformers import AutoTokenizer, PreTrainedTokenizerFast  # seconds, and seldom needed

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{model_dir}: no tokenizer can be loaded: {str(error).splitlines()[0]}") from error
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise ConfigError(f"{model_dir}: a fast tokenizer (tokenizer.json) is needed")
        return cls(tokenizer)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        prior: Turn | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        max_tokens: float = math.inf,
    ) -> tuple[int, ...]:
        """The prompt ids of a request, up to where the assistant speaks.

        Args:
            tools: OpenAI tool definitions.
            prior: the turn whose reply is the last of ours in `messages`; where the rendered text extends
                what that turn was fed and sampled, the result extends its ids.
            options: further variables of the template, e.g. `{"enable_thinking": False}`.
            max_tokens: the most that the model can be fed; tokenisation stops where there are more.

        Raises:
            RenderError: the template refuses the messages.
            PromptTooLong: they have more than `max_tokens`.
        """
        plain = tuple(self._plain(message) for message in messages)
        plain_tools = [self._neutralise_all(tool) for tool in tools] if self._is_marked(tools) else list(tools)
        fed = None if prior is None else self._fed_before(prior)
        if prior is not None and fed is not None:
            plain = _restored(plain, (*fed.messages, self._plain(prior.reply)))
        text = self._apply_template(plain, plain_tools, options or {})
        ids = self._extend(prior, fed, text, max_tokens) if prior is not None and fed is not None else None
        if ids is None:
            ids = self.encode(text, max_tokens)
        self._recent.put(ids, _Fed(plain, text), len(text))
        return ids

    def has_vocabulary_of(self, other: ChatFormat) -> bool:
        """Whether an id is the same token in both, so that one model can score what the other sampled."""
        return bool(self._backend.get_vocab() == other._backend.get_vocab())

    def parser(
        self,
        prompt_ids: Sequence[int] = (),
        *,
        with_tools: bool = True,
        tool_call_id: Callable[[int], str] = "call{}".format,
        streams_arguments: bool = False,
    ) -> ReplyParser:
        """A parser for the reply to `prompt_ids`, which tell whether the template has opened `<think>` already."""
        tail = self.decode(prompt_ids[-4:]).rstrip()
        return ReplyParser(
            with_tools=with_tools,
            in_reasoning=tail.endswith(THINK_OPEN),
            tool_call_id=tool_call_id,
            streams_arguments=streams_arguments,
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, control tokens included."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=False))

    # ---- prior turns

    def _fed_before(self, prior: Turn) -> _Fed | None:
        """What `prior` was fed: remembered, or rendered again and compared with its ids (after a restart)."""
        if (fed := self._recent.get(prior.prompt_ids)) is not None:
            return fed
        plain = tuple(self._plain(message) for message in prior.messages)
        tools = [self._neutralise_all(tool) for tool in prior.tools]
        try:
            text = self._apply_template(plain, tools, prior.template_options)
        except RenderError:  # another template than the one it was rendered with
            return None
        return _Fed(plain, text) if text.replace(_MARK, "") == self.decode(prior.prompt_ids) else None

    def _extend(self, prior: Turn, fed: _Fed, text: str, max_tokens: float) -> tuple[int, ...] | None:
        """The prior ids and those of the rest, if `text` begins with the prior prompt and reply."""
        before = fed.text + self.decode(prior.completion.token_ids)
        if not text.startswith(before):
            return None
        ids = prior.prompt_ids + prior.completion.token_ids
        return ids + self.encode(text[len(before) :], max_tokens - len(ids))

    # ---- template and tokenizer

    def _apply_template(self, messages: Sequence[Any], tools: Sequence[Any], options: Mapping[str, Any]) -> str:
        try:
            return str(
                self._template.render(
                    messages=list(messages),
                    tools=list(tools) or None,
                    add_generation_prompt=True,
                    **self._special_tokens,
                    **options,
                )
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise RenderError(f"the model's chat template refuses these messages: {error}") from error

    def encode(self, text: str, max_tokens: float = math.inf) -> tuple[int, ...]:
        """The ids of a rendered text, control tokens included.

        A request repeats its system prompt, tools and history word for word: what stands between control tokens is
        remembered.

        Raises: PromptTooLong when there are more than `max_tokens`.
        """
        ids: list[int] = []
        for piece in text.split(_MARK):
            segments = self._split(piece) if self._segments_stand_alone else [piece]
            for segment, control in zip_longest(segments[::2], segments[1::2]):
                if segment:
                    ids += self._encode_segment(segment, max_tokens - len(ids))
                if control is not None:
                    ids.append(self._control_ids[control])
            if len(ids) > max_tokens:
                raise PromptTooLong
        return tuple(ids)

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """The ids of what somebody wrote: a control token that stands spelled out in it stays text."""
        return self.encode(self._neutralise(text))

    def _encode_segment(self, segment: str, room: float) -> tuple[int, ...]:
        if (ids := self._segments.get(segment)) is None:
            ids = tuple(self._tokenise(segment, room))
            self._segments.put(segment, ids, len(segment))
        return ids

    def _tokenise(self, text: str, room: float = math.inf) -> list[int]:
        """The ids of a text; PromptTooLong as soon as there are more than `room`, so that a text which cannot fit costs
        what fits, however long it is."""
        ids: list[int] = []
        for piece in _pieces(text) if self._segments_stand_alone else [text]:
            # The batch call, unlike the single one, can leave out the offsets, which cost a quarter of the time.
            encoding = self._backend.encode_batch_fast([piece], add_special_tokens=False)[0]
            if len(ids) + len(encoding) > room:
                raise PromptTooLong
            ids += encoding.ids
        return ids

    def _cuts_at_controls(self) -> bool:
        """Whether the text between control tokens is tokenised as if it stood alone; not so where a prefix is added."""
        pieces = [f"a{control} b\n{control}" for control in self._control_ids]
        self._segments_stand_alone = True
        return all(self.encode(piece) == tuple(self._tokenise(piece)) for piece in pieces)

    def _keeps_argument_text(self) -> bool:
        """Whether the template prints arguments given as text as they stand; others want a mapping."""
        function = {"name": "f", "arguments": '{"a":  1}'}
        probe = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        ]
        try:
            return '{"a":  1}' in self._apply_template(probe, (), {})
        except RenderError:
            return False

    def _spell(self, token_id: int) -> tuple[str, tuple[int, ...]]:
        """A token as `(text, its UTF-8 bytes)`; the text shows U+FFFD where a token ends inside a character."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return "", ()
        if token in self._control_ids or not all(char in BYTE_OF_CHAR for char in token):
            return token, tuple(token.encode())
        raw = bytes(BYTE_OF_CHAR[char] for char in token)
        return raw.decode(errors="replace"), tuple(raw)

    # ---- what people wrote

    def _plain(self, message: Message) -> Message:
        """A message as templates expect it: text content, known keys, control tokens neutralised."""
        role = message["role"]
        plain: Message = {"role": {"developer": "system", "function": "tool"}.get(role, role)}
        content = message.get("content")
        content = content if isinstance(content, str) else _flatten(content)
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if role == "assistant":
            # Templates look for inline thoughts in old replies; do it for them, their tags are about to be cut.
            if THINK_CLOSE in content and (thought := _INLINE_THOUGHT.match(content)):
                reasoning, content = reasoning or thought[1].strip(), content[thought.end() :]
            if isinstance(reasoning, str) and reasoning:
                plain["reasoning_content"] = plain["thinking"] = self._neutralise(reasoning)  # names that templates use
            if message.get("tool_calls"):
                plain["tool_calls"] = [self._plain_call(call) for call in message["tool_calls"]]
        plain["content"] = self._neutralise(content)
        for key in ("name", "tool_call_id"):
            if isinstance(message.get(key), str):
                plain[key] = self._neutralise(message[key])
        return plain

    def _plain_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments = str(call["function"]["name"]), call["function"].get("arguments") or "{}"
        if isinstance(arguments, str) and not self._takes_argument_text:
            try:
                arguments = nesting.loads(arguments)
            except ValueError:
                arguments = {"arguments": arguments}
        function = {"name": self._neutralise(name), "arguments": self._neutralise_all(arguments)}
        return {"type": "function", "id": self._neutralise(str(call.get("id", ""))), "function": function}

    def _neutralise(self, text: str) -> str:
        if _MARK in text:
            text = text.replace(_MARK, "\ufffd")
        if not any([mark in text for mark in self._openers]) or not any(mark in text for mark in self._control_ids):
            return text  # the openers, mostly `<` alone, for speed
        pieces = self._split(text)
        pieces[1::2] = [control[0] + _MARK + control[1:] for control in pieces[1::2]]
        return "".join(pieces)

    def _split(self, text: str) -> list[str]:
        """The text cut at control tokens, which stand at the odd places; other threads get their turn meanwhile."""
        if len(text) <= _SLICE:
            return self._control.split(text)
        pieces: list[str] = []
        begun = position = 0
        while position < len(text):
            end = position + _SLICE
            found = self._control.search(text, position, end + self._longest_control)
            if found is None or found.start() >= end:
                position = end
                continue
            pieces += (text[begun : found.start()], found[0])
            begun = position = found.end()
        return [*pieces, text[begun:]]

    def _neutralise_all(self, value: Any) -> Any:
        """The same for every text inside a JSON value, keys included."""
        if isinstance(value, str):
            return self._neutralise(value)
        if isinstance(value, Mapping):
            return {self._neutralise(str(key)): self._neutralise_all(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self._neutralise_all(entry) for entry in value]
        return value

    def _is_marked(self, tools: Sequence[Mapping[str, Any]]) -> bool:
        """Whether any text in the tool definitions needs to be neutralised; a quick look, for the usual no."""
        text = json.dumps(tools, ensure_ascii=False) if tools else ""
        return _MARK in text or self._control.search(text) is not None


def _pieces(text: str) -> Iterator[str]:
    """A text in pieces, cut where a line begins: byte-level tokenizers put no token across it. A line that is longer
    than a piece is cut anyway: its ids are still ids of this text."""
    start, size = 0, _PIECE if text.isascii() else _PIECE // 4
    while len(text) - start > size:
        lines = _LINES.match(text, start, start + size)
        end = lines.end() if lines is not None else start + size
        yield text[start:end]
        start = end
    yield text[start:]


def _flatten(content: Any) -> str:
    """Content as one text; parts of a list stand on lines of their own."""
    texts = []
    for kind, text in parts_of(content):
        if text is None:
            raise RenderError(f"content of type {kind!r} is not supported: this model reads text only")
        texts.append(text)
    return "\n".join(texts)


def _restored(messages: tuple[Message, ...], ours: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` with our own earlier replies as we had them, where a client only re-spelled them.

    Clients drop reasoning, trim line ends and write the arguments of calls anew; the model sees what it wrote.
    """
    pairs = zip(messages, ours, strict=False)
    restored = [known if _is_respelled(message, known) else message for message, known in pairs]
    return (*restored, *messages[len(restored) :])


def _is_respelled(message: Message, known: Message) -> bool:
    return (
        message["role"] == known["role"] == "assistant"
        and message["content"].strip() == known["content"].strip()
        and _calls_by_value(message) == _calls_by_value(known)
    )


def _calls_by_value(message: Message) -> list[tuple[str, Any]]:
    calls = []
    for call in message.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError):  # what is no JSON is compared as the text it is
                arguments = nesting.loads(arguments)
        calls.append((call["function"]["name"], arguments))
    return calls
