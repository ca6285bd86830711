"""A transformers causal LM that computes flat steps, and whose weights can be exchanged between two of them.

Loading checks that the model really goes through the attention interface: the same few tokens, once by the model's
own attention and once in two ragged steps, must give the same logits. Exchanging weights is an exchange of
pointers: what is new was read, verified and placed on the device before, what is old stays whole until the new
weights have answered a probe with finite logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from slime.engines.embedded.attention import RAGGED, Chunk, RaggedStep
from slime.engines.embedded.lora_layers import AdaptedLayers, LiveAdapter, Spans, groups_of
from slime.engines.embedded.shortcuts import take_shortcuts
from slime.engines.embedded.slots import CacheShape, KVSlots
from slime.errors import ConfigError, WeightsError

PROBE_LENGTH = 9
"""Tokens of a probe."""


class RaggedModel:
    """The policy. All methods that compute run on the thread of the engine loop."""

    def __init__(self, model_dir: str | Path, *, device: torch.device, dtype: torch.dtype | None = None) -> None:
        """Load a model directory; a `ConfigError` in one line where it does not suit.

        Args:
            dtype: of the weights; None: float32 on a CPU, else the checkpoint's own.
        """
        if not (Path(model_dir) / "config.json").is_file():
            raise ConfigError(f"--model-path {model_dir}: no config.json there; give a Hugging Face model directory")
        wanted = dtype or (torch.float32 if device.type == "cpu" else "auto")
        try:
            full_config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                model_dir, config=full_config, dtype=wanted, attn_implementation="sdpa", local_files_only=True
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ConfigError(f"--model-path {model_dir}: {first_line(error)}") from error
        self._model = loaded.to(device=device).eval().requires_grad_(False)
        self._forward: Callable[..., Any] = self._model.forward
        self.layers = AdaptedLayers(self._model)
        weight = next(self._model.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        config: Any = full_config.get_text_config()
        self.vocab_size = int(config.vocab_size)
        self.eos_token_ids = _eos_token_ids(Path(model_dir), config)
        self.max_context_len = int(getattr(config, "max_position_embeddings", 1 << 30))
        num_heads = int(config.num_attention_heads)
        self.cache_shape = CacheShape(
            num_layers=int(config.num_hidden_layers),
            num_kv_heads=int(getattr(config, "num_key_value_heads", None) or num_heads),
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // num_heads),
            dtype=self.dtype,
            device=self.device,
        )
        self._become_ragged()

    def compute(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        step: RaggedStep,
        keep: Sequence[int],
        adapted: Mapping[LiveAdapter, Spans],
    ) -> torch.Tensor:
        """One forward of all tokens of a step: float32 logits `[len(keep), vocab]` after the tokens `keep`.

        Args:
            adapted: tokens that pass through an adapter.
        """
        self.layers.groups = groups_of(adapted, len(ids), self.device)
        with torch.inference_mode():
            logits = self._forward(
                input_ids=torch.tensor([ids], device=self.device),
                position_ids=torch.tensor([positions], device=self.device),
                use_cache=False,
                logits_to_keep=torch.tensor(keep, dtype=torch.long, device=self.device),
                ragged=step,
            ).logits
            return logits[0].float()  # type: ignore[no-any-return]

    def probe(self, kv: KVSlots) -> torch.Tensor:
        """Logits `[2, vocab]` after the last two of a few fixed tokens, computed in the cache's scratch row."""
        ids = _probe_ids(self.vocab_size)
        half = PROBE_LENGTH - 1
        first = RaggedStep(kv, [], [], [Chunk(0, half, kv.scratch, 0)])
        last = RaggedStep(kv, [kv.scratch], [PROBE_LENGTH], [])
        return torch.cat(
            [
                self.compute(ids[:half], range(half), first, [half - 1], {}),
                self.compute(ids[half:], [half], last, [0], {}),
            ]
        )

    def stage(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Bring a state dict to the model's device and types; a `WeightsError` where names or shapes differ.

        May run on any thread: it touches nothing that is being served.
        """
        own = self._model.state_dict(keep_vars=True)
        aliases = {id(tensor): name for name, tensor in own.items() if name in tensors}
        missing = [name for name, tensor in own.items() if id(tensor) not in aliases]
        unknown = [name for name in tensors if name not in own]
        if missing or unknown:
            what = f"lacks {missing[0]}" if missing else f"has the unknown {unknown[0]}"
            raise WeightsError(f"the weights do not fit the model: the file {what}")
        staged = {}
        for name, tensor in tensors.items():
            if tensor.shape != own[name].shape:
                raise WeightsError(f"{name} has shape {list(tensor.shape)}, the model's is {list(own[name].shape)}")
            staged[name] = tensor.to(device=self.device, dtype=own[name].dtype, copy=True)
        return staged

    def exchange(self, staged: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Serve staged tensors from now on, by exchanging pointers; returns those served until now."""
        own = self._model.state_dict(keep_vars=True)
        replaced = {}
        for name, tensor in staged.items():
            replaced[name] = own[name].data
            own[name].data = tensor
        return replaced

    def _become_ragged(self) -> None:
        """Change the model to ragged attention, and compare with its own."""
        name = type(self._model).__name__
        ids = torch.tensor([_probe_ids(self.vocab_size)], device=self.device)
        kv = KVSlots(self.cache_shape, max_busy=1, num_slots=1, max_length=2 * PROBE_LENGTH, budget_bytes=1 << 40)
        try:
            with torch.inference_mode():
                expected = self._forward(input_ids=ids, use_cache=False).logits[0, -2:].float()
            self._model.set_attn_implementation(RAGGED)
            take_shortcuts(self._model)
            found = self.probe(kv)
        except (ValueError, TypeError, RuntimeError, IndexError, AttributeError, KeyError) as error:
            raise ConfigError(f"the embedded engine cannot run {name}: {first_line(error)}") from error
        tolerance = 1e-3 if self.dtype == torch.float32 else 5e-2
        scale = max(1.0, float(expected.abs().max()))
        difference = float((found - expected).abs().max()) / scale
        if not difference <= tolerance:
            raise ConfigError(
                f"the embedded engine cannot run {name}: its attention differs from the model's own by {difference:.1e}"
            )


def _eos_token_ids(model_dir: Path, config: Any) -> frozenset[int]:
    """Ids that end a reply, by generation_config.json and config.json together."""
    sources = [config.eos_token_id]
    if (model_dir / "generation_config.json").is_file():
        sources.append(GenerationConfig.from_pretrained(model_dir, local_files_only=True).eos_token_id)
    ids: set[int] = set()
    for source in sources:
        ids.update([source] if isinstance(source, int) else source or [])
    return frozenset(ids)


def _probe_ids(vocab_size: int) -> list[int]:
    return [(7919 * (position + 1)) % vocab_size for position in range(PROBE_LENGTH)]


def first_line(error: BaseException) -> str:
    """The first sentence of an error's message: the rest of transformers' is advice to its developers."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].split(". ")[0]
