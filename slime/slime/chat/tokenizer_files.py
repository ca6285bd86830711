"""A model directory's tokenizer and chat template, read without transformers, which takes seconds to import.

    tokenizer.json        ─▶ tokenizers.Tokenizer
    tokenizer_config.json ─▶ special tokens, template (or chat_template.jinja beside it)

A directory that asks for more (another class of tokenizer, tokens that only the configuration adds, several templates)
is left to transformers: `read_tokenizer` says None.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast", "Qwen2Tokenizer", "Qwen2TokenizerFast")
"""Those that tokenise just as tokenizer.json says."""
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class FileTokenizer:
    """A tokenizer as its files describe it; attributes as those of transformers' fast ones."""

    name_or_path: str
    chat_template: str
    special_tokens_map: Mapping[str, str]
    backend_tokenizer: Tokenizer


def read_tokenizer(model_dir: Path) -> FileTokenizer | None:
    """The directory's tokenizer; None for one that these files alone do not describe."""
    try:
        config = json.loads((model_dir / "tokenizer_config.json").read_text(encoding="utf-8"))
        if config.get("tokenizer_class") not in _CLASSES or config.get("extra_special_tokens"):
            return None
        if (model_dir / "special_tokens_map.json").exists() or (model_dir / "additional_chat_templates").exists():
            return None
        beside = model_dir / "chat_template.jinja"
        template = beside.read_text(encoding="utf-8") if beside.exists() else config.get("chat_template")
        backend = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    except Exception:  # the tokenizers library raises nothing narrower; transformers says what is wrong
        return None
    special = {name: _content(config[name]) for name in _SPECIAL if config.get(name) is not None}
    added = {_content(entry) for entry in (config.get("added_tokens_decoder") or {}).values()}
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    if not isinstance(template, str) or not added | set(special.values()) <= known:
        return None
    backend.no_padding()
    backend.no_truncation()
    return FileTokenizer(str(model_dir), template, special, backend)


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, Mapping) else token)


# ── templates ────────────────────────────────────────────────────────────────────────────────────────────────────────


def compile_template(source: str) -> jinja2.Template:
    """A chat template in a sandbox, with the names that templates may use.

    `tojson` leaves HTML's characters alone, unlike Jinja's own; `raise_exception` refuses messages; `strftime_now` is
    the date; `{% generation %}` marks what the assistant says, and prints what stands in it.
    """
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": _now, "namespace": _Namespace}
    return environment.from_string(source)


_NAMES_IN_DICT = frozenset(dir(dict))


class _Environment(ImmutableSandboxedEnvironment):
    def getattr(self, obj: Any, attribute: str) -> Any:
        """Templates ask messages for their keys by the dozen: no need to look for methods of those names first."""
        if type(obj) is dict and attribute not in _NAMES_IN_DICT:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


class _Generation(jinja2.ext.Extension):
    tags = {"generation"}  # noqa: RUF012 (an instance's, says the base class)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """What a template counts in; names that Python gives a meaning are refused."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a template cannot set {name!r}")
        super().__setitem__(name, value)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _byte_of_char() -> dict[str, int]:
    """Byte-level vocabularies write each byte as one printable character; this is the way back."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_of_char()
