"""Adapters on the wire: loaded beside the base under a name, named by the requests that want them, listed as models.

    POST /load_lora_adapter   {"lora_name": "ada@7", "lora_path": "/…"} ─▶ {"success": true, "loaded_adapters": {…}}
    POST /generate            {…, "lora_path": "ada@7"}                 ─▶ every token is made by version 7
    POST /unload_lora_adapter {"lora_name": "ada@7"}
    GET  /v1/models           {"data": [{"id": "model"}, {"id": "ada@7", "parent": "model", …}]}

What is loaded under a name never changes: a new version is loaded under a new name, `<adapter>@<version>`, and a
request keeps to its end the one it began with. So an engine that knows nothing of versions (SGLang's `weight_version`
is that of the base) still says which version made a token, and no keys and values outlive the weights they came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from slime.errors import EngineError, EngineRejected

Json = dict[str, Any]


def adapter_to_wire(name: str, version: int) -> str:
    """`("ada", 7)` → `"ada@7"`."""
    return f"{name}@{version}"


def adapter_from_wire(wire_name: str) -> tuple[str, int] | None:
    """`"ada@7"` → `("ada", 7)`; None for a name that is none of ours."""
    name, at, version = wire_name.rpartition("@")
    return (name, int(version)) if at and name and version.isascii() and version.isdigit() else None


@dataclass(frozen=True, slots=True)
class LoadAdapterCall:
    """A POST /load_lora_adapter: serve the adapter in `path` to requests that name `wire_name`."""

    wire_name: str
    path: str


def load_adapter_body(call: LoadAdapterCall) -> bytes:
    return orjson.dumps({"lora_name": call.wire_name, "lora_path": call.path})


def parse_load_adapter(body: Mapping[str, Any]) -> LoadAdapterCall:
    path = body.get("lora_path")
    if not isinstance(path, str) or not path:
        raise EngineRejected("lora_path must name a directory")
    return LoadAdapterCall(parse_unload_adapter(body), path)


def unload_adapter_body(wire_name: str) -> bytes:
    return orjson.dumps({"lora_name": wire_name})


def parse_unload_adapter(body: Mapping[str, Any]) -> str:
    """The name that a POST /unload_lora_adapter speaks of."""
    name = body.get("lora_name")
    if not isinstance(name, str) or not name:
        raise EngineRejected("lora_name must be given, as a string")
    return name


def adapters_changed(loaded: Mapping[str, str]) -> Json:
    """The answer to both: the paths of all adapters that are loaded now, by name."""
    return {"success": True, "error_message": None, "loaded_adapters": dict(loaded)}


def adapters_unchanged(reason: str) -> Json:
    return {"success": False, "error_message": reason, "loaded_adapters": None}


def not_loaded(wire_name: str) -> EngineRejected:
    return EngineRejected(f"The following requested LoRA adapters are not loaded: {wire_name}")


def already_loaded(wire_name: str) -> EngineRejected:
    return EngineRejected(f"Failed to load LoRA adapter {wire_name} because it is already loaded")


def model_list(base: str, adapters: Mapping[str, str]) -> Json:
    """The answer to GET /v1/models: the base, and each adapter with the base as its parent."""
    cards: list[Json] = [{"id": base, "object": "model", "owned_by": "openclaw", "root": base, "parent": None}]
    cards += [
        {"id": name, "object": "model", "owned_by": "openclaw", "root": path, "parent": base}
        for name, path in adapters.items()
    ]
    return {"object": "list", "data": cards}


def parse_adapters(payload: Json) -> dict[str, list[int]]:
    """The versions that are loaded of each adapter of ours, oldest first: `{"ada": [6, 7]}`."""
    try:
        return _by_adapter([card["id"] for card in payload["data"] if card.get("parent") is not None])
    except (KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"the engine's answer is not of the dialect: {error!r}") from error


def parse_loaded(payload: Json) -> dict[str, list[int]]:
    """The same, of the answer to a load."""
    try:
        return _by_adapter(list(payload["loaded_adapters"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"the engine's answer is not of the dialect: {error!r}") from error


def _by_adapter(wire_names: list[str]) -> dict[str, list[int]]:
    versions: dict[str, list[int]] = {}
    for known in map(adapter_from_wire, wire_names):
        if known is not None:
            versions.setdefault(known[0], []).append(known[1])
    return {name: sorted(found) for name, found in versions.items()}
