"""LoRA adapters on disk: PEFT's two files, and a manifest that binds them to their base weights.

    {module: (A, B)} ─ guard ─▶ adapter_config.json + adapter_model.safetensors ─ manifest ─ rename ─▶ version-3/
    version-3/ ─ verify against the base ─▶ engines, beside the base            merge: W + α/r · B·A ─▶ a whole model

PEFT, SGLang and vLLM load such a directory as it is. An adapter means nothing on other weights than those it was
trained on, so the manifest carries a fingerprint of the base, and a reader that knows its base compares.
LoRA: Hu et al. 2021, https://arxiv.org/abs/2106.09685.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from slime.errors import WeightsError
from slime.weights.directories import Manifest, atomic_directory, require_directory, verify_manifest, write_manifest
from slime.weights.models import read_tensors, read_weights, require_model_files, weight_files, write_weights

ADAPTER_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
_PREFIX = "base_model.model."  # of every tensor's name, in PEFT's files
_HALF = re.compile(re.escape(_PREFIX) + r"(?P<module>.+)\.lora_(?P<letter>[AB])\.weight")
_SAMPLE_BYTES, _NUM_SAMPLES = 4096, 1024


@dataclass(frozen=True, slots=True)
class LoraShape:
    """What makes two adapters interchangeable.

    >>> LoraShape(rank=8, alpha=16.0, target_modules=("k_proj", "q_proj", "v_proj"))

    Attributes:
        target_modules: last parts of the adapted modules' names, sorted.
    """

    rank: int
    alpha: float
    target_modules: tuple[str, ...]

    @property
    def scale(self) -> float:
        """What B·A is multiplied by."""
        return self.alpha / self.rank


@dataclass(frozen=True)
class Adapter:
    """An adapter in memory, on the CPU.

    Attributes:
        pairs: (A [rank, in], B [out, rank]) by module, e.g. `model.layers.0.self_attn.q_proj`.
    """

    shape: LoraShape
    pairs: Mapping[str, tuple[Tensor, Tensor]]

    @property
    def halves(self) -> dict[str, Tensor]:
        """A and B by `<module>.lora_A` and `<module>.lora_B`."""
        return {
            f"{module}.lora_{letter}": half
            for module, pair in self.pairs.items()
            for letter, half in zip("AB", pair, strict=True)
        }


def is_adapter(directory: str | Path) -> bool:
    """Whether a directory holds an adapter, and not a whole model."""
    return (Path(directory) / CONFIG_FILE).is_file()


def write_adapter(
    adapter: Adapter,
    adapter_dir: str | Path,
    *,
    name: str,
    version: int,
    base: str,
    dropout: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Manifest:
    """Publish an adapter as a directory, atomically.

    Args:
        adapter_dir: the directory to make. One of that name is replaced.
        name: whose adapter it is, e.g. `policy`.
        base: fingerprint of the weights it was trained on.
        dropout: what it was trained with, for people.
        dtype: what its tensors are stored as; None: as they are given.

    Raises:
        WeightsError: a value is not finite, as it is stored. Nothing has been written then.
    """
    tensors: dict[str, Tensor] = {}
    for name_of_half, half in adapter.halves.items():
        tensor = half if dtype is None else half.to(dtype)
        if not bool(torch.isfinite(tensor).all()):
            raise WeightsError(f"refused to publish: {name_of_half} holds a value that is not finite")
        tensors[f"{_PREFIX}{name_of_half}.weight"] = tensor.detach().cpu().contiguous()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": adapter.shape.rank,
        "lora_alpha": adapter.shape.alpha,
        "lora_dropout": dropout,
        "target_modules": list(adapter.shape.target_modules),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
    with atomic_directory(adapter_dir) as partial_dir:
        (partial_dir / CONFIG_FILE).write_text(json.dumps(config, indent=1), encoding="utf-8")
        save_file(tensors, partial_dir / ADAPTER_FILE, metadata={"format": "pt"})
        return write_manifest(partial_dir, version, adapter=name, base=base)


def verify_adapter(adapter_dir: str | Path, base: str = "") -> Manifest:
    """The manifest of an adapter directory, after every file in it was compared with its hash.

    Args:
        base: fingerprint of the weights it is to be used with; empty = not compared.

    Raises:
        WeightsError: names the directory, and what is wrong with it.
    """
    adapter_dir = Path(adapter_dir)
    require_directory(adapter_dir)
    if not is_adapter(adapter_dir):
        raise WeightsError(f"{adapter_dir}: no {CONFIG_FILE}: not an adapter")
    manifest = verify_manifest(adapter_dir, ADAPTER_FILE)
    if base and manifest.base != base:
        raise WeightsError(f"{adapter_dir}: an adapter of other base weights than the model's")
    return manifest


def read_adapter(adapter_dir: str | Path) -> Adapter:
    """An adapter as its files have it; hashes are not checked.

    Raises:
        WeightsError: not LoRA, or LoRA of a kind that is more than α/r · B·A.
    """
    adapter_dir = Path(adapter_dir)
    shape = _read_shape(adapter_dir / CONFIG_FILE)
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_tensors(adapter_dir / ADAPTER_FILE).items():
        found = _HALF.fullmatch(name)
        if found is None:
            raise WeightsError(f"{adapter_dir}: {name} is no tensor of a plain LoRA adapter")
        if not bool(torch.isfinite(tensor).all()):
            raise WeightsError(f"{adapter_dir}: {name} holds a value that is not finite")
        halves.setdefault(found["module"], {})[found["letter"]] = tensor
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for module, pair in halves.items():
        a, b = (pair.get(letter, torch.empty(0)) for letter in "AB")
        if a.ndim != 2 or b.ndim != 2 or a.shape[0] != shape.rank or b.shape[1] != shape.rank:
            raise WeightsError(f"{adapter_dir}: lora_A and lora_B of {module} do not make a pair of rank {shape.rank}")
        pairs[module] = a, b
    return Adapter(shape, pairs)


def merge_adapter(base_dir: str | Path, adapter_dir: str | Path, out_dir: str | Path) -> Manifest:
    """Write the model that base and adapter are together, W + α/r · B·A, as a weights directory.

    The sum is made in float32 and kept in the type of the base; the version is the adapter's.

    Raises:
        WeightsError: the adapter was trained on another base, or adapts what the base does not have.
    """
    manifest = verify_adapter(adapter_dir, fingerprint(base_dir))
    return write_merged(base_dir, read_adapter(adapter_dir), out_dir, version=manifest.version)


def write_merged(base_dir: str | Path, adapter: Adapter, out_dir: str | Path, *, version: int) -> Manifest:
    """As `merge_adapter`, of an adapter in memory.

    Raises:
        WeightsError: it adapts what the base does not have.
    """
    tensors = read_weights(base_dir)
    for module, (a, b) in adapter.pairs.items():
        weight = tensors.get(f"{module}.weight")
        if weight is None or weight.shape != (b.shape[0], a.shape[1]):
            raise WeightsError(f"the adapter adapts {module}, which {base_dir} has not, or in another shape")
        update = adapter.shape.scale * (b.float() @ a.float())
        tensors[f"{module}.weight"] = (weight.float() + update).to(weight.dtype)
    return write_weights(tensors, out_dir, version=version, template_dir=base_dir)


def fingerprint(model_dir: str | Path) -> str:
    """What tells a model's weights from others, in milliseconds: a hash of sizes and of spread samples of each file.

    Training changes every tensor throughout, so samples tell versions of a model apart; against
    manipulation there are the manifest's hashes.
    """
    model_dir = Path(model_dir)
    require_model_files(model_dir)
    digest = hashlib.blake2b(digest_size=16)
    for file in weight_files(model_dir):
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        step = max(_SAMPLE_BYTES, size // _NUM_SAMPLES)
        with file.open("rb") as stream:
            for position in range(0, size, step):
                stream.seek(position)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _read_shape(file: Path) -> LoraShape:
    try:
        config: Any = json.loads(file.read_text(encoding="utf-8"))
        targets = config["target_modules"]
        if config["peft_type"] != "LORA" or isinstance(targets, str):
            raise WeightsError(f"{file}: not a LoRA adapter with a list of target modules")
        for name in ("use_dora", "use_rslora", "modules_to_save", "rank_pattern", "alpha_pattern"):
            if config.get(name):
                raise WeightsError(f"{file}: {name} is set; only plain LoRA is served")
        return LoraShape(int(config["r"]), float(config["lora_alpha"]), tuple(sorted(targets)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{file}: not an adapter's configuration: {type(error).__name__}: {error}") from None
