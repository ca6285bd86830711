"""What a hook that asks an engine over HTTP by itself does not know: the engine's token, and the adapter that answers.

    slime_arguments ─ introduce(address, token, "policy") ─▶ table
    post(url/generate, {input_ids, …}) ─ token, lora_path: policy@7 ─▶ engine ─▶ answer, labelled with version 7

An engine with adapters reports the version of the base in `weight_version`, so an answer is relabelled with the version
of the adapter that made it. The table is keyed by the engine's address: hooks run on threads and event loops of their
own, and the URL is all that they pass on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from slime.compat.sample import Sample
from slime.engines.dialect.reading import parse_adapters
from slime.engines.dialect.versions import adapter_to_wire, version_from_wire, version_to_wire
from slime.errors import PluginError

_ASK_S = 30.0


@dataclass(frozen=True, slots=True)
class _Known:
    """An engine of this run.

    Attributes:
        token: what it wants of everybody; empty = nothing.
        adapter: whose newest version answers; empty = the base.
    """

    token: str = ""
    adapter: str = ""


_ENGINES: dict[str, _Known] = {}  # by host and port


def introduce(address: str, token: str, adapter: str) -> None:
    """Have requests of hooks to the engine at `host:port` show its token, and be answered by the adapter."""
    if address:
        _ENGINES[address] = _Known(token, adapter)


def headers_for(url: str) -> dict[str, str]:
    """The headers that the engine behind a URL wants."""
    token = _known(url).token
    return {"Authorization": f"Bearer {token}"} if token else {}


async def newest_version(session: aiohttp.ClientSession, engine_url: str) -> tuple[str, int | None]:
    """The adapter that serves hooks at an engine, and its newest version; None where the base answers.

    Raises:
        aiohttp.ClientError, TimeoutError: the engine is away.
    """
    name = _known(engine_url).adapter
    if not name:
        return "", None
    url, timeout = f"http://{urlsplit(engine_url).netloc}/v1/models", aiohttp.ClientTimeout(total=_ASK_S)
    async with session.get(url, headers=headers_for(url), timeout=timeout) as answer:
        answer.raise_for_status()
        versions = parse_adapters(await answer.json(content_type=None)).get(name)
    return name, versions[-1] if versions else None


async def addressed(
    session: aiohttp.ClientSession, url: str, payload: Mapping[str, Any]
) -> tuple[dict[str, Any], int | None]:
    """A request as it is sent: with the newest version of the adapter where it asks for tokens and names none."""
    if urlsplit(url).path != "/generate" or payload.get("lora_path"):
        return dict(payload), None
    name, version = await newest_version(session, url)
    if version is None:
        return dict(payload), None
    return {**payload, "lora_path": adapter_to_wire(name, version)}, version


def relabelled(answer: Any, version: int | None) -> Any:
    """An answer of `/generate`, all of whose tokens one version of an adapter made."""
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if version is None or not isinstance(meta, dict):
        return answer
    label = version_to_wire(version)
    labels: dict[str, Any] = {"weight_version": label}
    if "weight_versions" in meta:
        labels["weight_versions"] = [{**span, "version": label} for span in meta["weight_versions"]]
    return {**answer, "meta_info": {**meta, **labels}}


async def arguments_now(args: SimpleNamespace) -> SimpleNamespace:
    """`args` with what serves now: `lora_path` and `weight_version`, for hooks with an HTTP client of their own."""
    if args.sglang_router_ip is None:
        return args
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    if not _known(url).adapter:
        return args
    try:
        async with aiohttp.ClientSession() as session:
            name, version = await newest_version(session, url)
    except (aiohttp.ClientError, TimeoutError):  # away: what the hook sends will find that out
        return args
    if version is None:
        return args
    served = {"lora_path": adapter_to_wire(name, version), "weight_version": version_to_wire(version)}
    return SimpleNamespace(**vars(args) | served)


def check_sampled_by(adapter_version: str | None, samples: Iterable[Sample], place: str) -> None:
    """Raise a PluginError where the base answered a hook although an adapter was served when the hook was called.

    Args:
        adapter_version: `args.weight_version` of that call; None where the base served.
    """
    if adapter_version is None:
        return
    served = version_from_wire(adapter_version)
    for sample in samples:
        older = [label for label in sample.weight_versions if version_from_wire(label) < served]
        if older:
            raise PluginError(
                f"{place}: a reply is of weight version {older[0]}, and the adapter serves version {adapter_version}: "
                "post with slime.utils.http_utils.post, or send lora_path=args.lora_path and label the reply with "
                "args.weight_version"
            )


def _known(url: str) -> _Known:
    return _ENGINES.get(urlsplit(url).netloc, _Known())
