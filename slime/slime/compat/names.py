"""What functions written for slime call: its HTTP helper and its tokenizer; `compat.install` lends them its names.

    GenerateState(args).tokenizer ─▶ ids ─▶ await post(url/generate, {"input_ids": …}) ─▶ {"text": …, "meta_info": …}
                                            │ + token, lora_path: policy@7                 labelled with version 7 │
                                            └───────────────────────────▶ engine ─────────────────────────────────┘

A hook does not know the engine's token and the adapter that is to answer: a table by the engine's address does, since
hooks run on threads and event loops of their own, and a URL is all that they pass on. An engine with adapters reports
the version of the base in `weight_version`, so an answer is relabelled with that of the adapter that made it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from slime.compat.sample import Sample
from slime.engines.dialect.reading import parse_adapters
from slime.engines.dialect.versions import adapter_to_wire, version_from_wire, version_to_wire
from slime.errors import PluginError

_TIMEOUT_S = 600.0
_RETRY_S = 1.0
_ASK = aiohttp.ClientTimeout(total=30.0)

_ENGINES: dict[str, tuple[str, str]] = {}
"""Engines of this run by `host:port`: the token that they want, and the adapter that answers hooks; "" for none."""


def introduce(address: str, token: str, adapter: str) -> None:
    """Have requests of hooks to the engine at `host:port` show its token, and be answered by the adapter."""
    if address:
        _ENGINES[address] = token, adapter


class GenerateState:
    """What such functions read of the run; made anew as often as they like.

    Attributes:
        tokenizer: the model's, from `args.hf_checkpoint`.
        sampling_params: those of a training rollout.
        processor: None: there are no images.
        aborted: False: nothing is aborted for an update.
    """

    def __init__(self, args: SimpleNamespace) -> None:
        self.args = args
        self.tokenizer = _tokenizer(str(args.hf_checkpoint))
        self.sampling_params: Mapping[str, Any] = getattr(args, "sampling_params", {})
        self.processor = None
        self.aborted = False


@functools.cache
def _tokenizer(model_dir: str) -> Any:
    from transformers import AutoTokenizer  # seconds of imports that most files never need

    return AutoTokenizer.from_pretrained(model_dir, local_files_only=True)


async def post(
    url: str, payload: Mapping[str, Any] | None, max_retries: int = 60, headers: Mapping[str, str] | None = None
) -> Any:
    """The JSON that a POST is answered with; asked again while the server is away or busy.

    In a run that trains an adapter a `/generate` at one of its engines, unless it names another, is answered by the
    newest version of it.

    Raises:
        RuntimeError: it refused, or was away all the time.
    """
    why, body = "", dict(payload or {})
    wants_newest = urlsplit(url).path == "/generate" and not body.get("lora_path")
    headers = {**_headers(url), **(headers or {})}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
        for attempt in range(max(max_retries, 1)):
            if attempt:
                await asyncio.sleep(_RETRY_S)
            try:
                name, label = await _served(session, url) if wants_newest else ("", "")
                sent = {**body, "lora_path": name} if name else body
                async with session.post(url, json=sent, headers=headers) as answer:
                    if answer.status == 200:
                        return _relabelled(await answer.json(content_type=None), label)
                    why = f"status {answer.status}: {(await answer.text())[:300]}"
                    if answer.status not in (429, 502, 503, 504):
                        break
            except (aiohttp.ClientError, TimeoutError) as error:
                why = str(error) or type(error).__name__
    raise RuntimeError(f"{url}: {why}")


async def arguments_now(args: SimpleNamespace) -> SimpleNamespace:
    """`args` with what serves now: `lora_path` and `weight_version`, for hooks with an HTTP client of their own."""
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    try:
        async with aiohttp.ClientSession() as session:
            name, label = await _served(session, url)
    except (aiohttp.ClientError, TimeoutError):  # away: what the hook sends will find that out
        return args
    return SimpleNamespace(**vars(args) | {"lora_path": name, "weight_version": label}) if name else args


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


async def _served(session: aiohttp.ClientSession, engine_url: str) -> tuple[str, str]:
    """The newest version of the adapter that serves hooks at an engine, by its name there, and its label; empty where
    the base answers.

    Raises:
        aiohttp.ClientError, TimeoutError: the engine is away.
    """
    address = urlsplit(engine_url).netloc
    _, adapter = _ENGINES.get(address, ("", ""))
    if not adapter:
        return "", ""
    async with session.get(f"http://{address}/v1/models", headers=_headers(engine_url), timeout=_ASK) as answer:
        answer.raise_for_status()
        versions = parse_adapters(await answer.json(content_type=None)).get(adapter)
    return (adapter_to_wire(adapter, versions[-1]), version_to_wire(versions[-1])) if versions else ("", "")


def _headers(url: str) -> dict[str, str]:
    """The headers that the engine behind a URL wants."""
    token, _ = _ENGINES.get(urlsplit(url).netloc, ("", ""))
    return {"Authorization": f"Bearer {token}"} if token else {}


def _relabelled(answer: Any, label: str) -> Any:
    """An answer of `/generate`, all of whose tokens one version of an adapter made; as it came where none did."""
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if not label or not isinstance(meta, dict):
        return answer
    labels: dict[str, Any] = {"weight_version": label}
    if "weight_versions" in meta:
        labels["weight_versions"] = [{**span, "version": label} for span in meta["weight_versions"]]
    return {**answer, "meta_info": {**meta, **labels}}
