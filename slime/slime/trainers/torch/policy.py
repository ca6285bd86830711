"""The policy: a causal language model over packed documents, laid end to end without padding.

    FlatBatch ─▶ model body (document attention) ─▶ hidden states at predictors ─▶ TokenHead

Whether a model can be fed so is not taken from a list of names: it is tried, once, when it is loaded. One
that mixes documents (a recurrent layer, say) is fed them one at a time instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from slime.config.model_dir import refuse_float16
from slime.config.sections import SHARED_ADAPTER, LoraConfig
from slime.data.rows import FlatBatch
from slime.errors import TrainerError, WeightsError
from slime.trainers.scoring import Forward
from slime.trainers.token_head import TokenHead
from slime.trainers.torch.attention import DOCUMENTS
from slime.trainers.torch.lora import LoraLayers, add_lora
from slime.trainers.torch.master import MasterWeights
from slime.weights.adapters import fingerprint, is_adapter, read_adapter, verify_adapter, write_adapter, write_merged
from slime.weights.directories import Manifest
from slime.weights.models import require_shapes, stored_dtypes, verify_weights, write_weights

_PROBE_LENS = (7, 4)
_PROBE_TOLERANCE = 1e-3  # of the largest logit; a leak between documents is far above it


class Policy:
    """A model and how to get log-probs out of it.

    Args:
        model_dir: a Hugging Face model directory.
        device: where it computes.
        compute_dtype: of the whole model, as in an engine. What is trained is kept in float32, beside the model's
            weights (`master`) or as an adapter.
        is_trained: whether it gets gradients; a reference does not.
        lora: train an adapter of this kind and nothing else; the model's own weights stay as they are.
        seed: of a new adapter.
        served_dtype: what engines were told to serve in; None: what the model's files are stored in.

    Attributes:
        is_flat: whether documents may lie end to end in one forward pass.
        lora: the adapter's layers; None when all weights are trained.
        adapter_name: what the adapter is published as.
    """

    def __init__(
        self,
        model_dir: Path,
        device: torch.device,
        compute_dtype: torch.dtype = torch.float32,
        *,
        is_trained: bool = True,
        lora: LoraConfig | None = None,
        seed: int = 0,
        served_dtype: torch.dtype | None = None,
    ) -> None:
        self.device = device
        self.compute_dtype = compute_dtype
        verify_weights(model_dir)
        self._model_dir = model_dir
        self._dropout = lora.lora_dropout if lora is not None else 0.0
        self._is_merged = lora is not None and lora.lora_publish == "merged"
        self._served_dtype = served_dtype
        self.model = load_model(model_dir, compute_dtype)
        self.model.to(device).requires_grad_(is_trained)
        self._master: MasterWeights | None = None
        if is_trained and lora is None and compute_dtype != torch.float32:
            self._master = MasterWeights(self.model, dict(load_model(model_dir, torch.float32).named_parameters()))
        self.is_flat = False
        self.lora: LoraLayers | None = None
        self._choose_attention(str(model_dir))
        self.adapter_name = SHARED_ADAPTER
        if lora is not None:
            self._base = fingerprint(model_dir)
            self.lora = add_lora(self.model, lora, seed)

    @property
    def vocab_size(self) -> int:
        return int(self.model.get_output_embeddings().weight.shape[0])

    def checkpoint_activations(self) -> None:
        """Recompute activations on the way back instead of keeping them."""
        self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model.train()  # transformers recomputes in training mode only; dropout is off all the same

    def hidden_states(self, flat: FlatBatch) -> Tensor:
        """The last hidden states of every fed token: [T, H].

        Their value is always the one without dropout, which is the model that samples: ratios, KL, values and metrics
        are made of it. Dropout acts on the gradient alone, at the price of a second pass.
        """
        if self.lora is None or not self._dropout:
            return self._run(flat)
        with torch.no_grad(), self.lora.without_dropout():
            hidden = self._run(flat)
        if not torch.is_grad_enabled():
            return hidden
        dropped = self._run(flat)
        return hidden + (dropped - dropped.detach())

    def _run(self, flat: FlatBatch) -> Tensor:
        with self._computing():
            if self.is_flat:
                return self._body(flat.token_ids, flat.position_ids, document_lens=flat.document_lens)
            lengths = list(flat.document_lens)
            parts = zip(torch.split(flat.token_ids, lengths), torch.split(flat.position_ids, lengths), strict=True)
            return torch.cat([self._body(ids, positions) for ids, positions in parts])

    def forward(self, flat: FlatBatch) -> tuple[Tensor, TokenHead]:
        """The hidden states of every fed token, [T, H], and the output layer over those that predict trainable ones."""
        hidden = self.hidden_states(flat)
        return hidden, TokenHead(hidden[flat.predictors], self._project, flat.streams["temperature"], self.vocab_size)

    def parameters(self) -> dict[str, Tensor]:
        """What is trained, by name."""
        if self.lora is not None:
            return dict(self.lora.parameters)
        return dict(self.model.named_parameters() if self._master is None else self._master.parameters)

    def body_parameters(self) -> dict[str, Tensor]:
        """The same without what the output layer alone reads."""
        read = {id(parameter) for parameter in self.model.base_model.parameters()}
        if self.lora is not None:
            return {name: p for name, p in self.lora.parameters.items() if id(p) in read}
        names = {name for name, parameter in self.model.named_parameters() if id(parameter) in read}
        return {name: p for name, p in self.parameters().items() if name in names}

    def refresh(self) -> None:
        """Compute with the parameters as they are now; to be called whenever they were moved."""
        if self._master is not None:
            self._master.refresh()

    def reference(self) -> Forward:
        """`forward` of the model as it was at the start: with LoRA of this one without its adapter, else of another."""
        if self.lora is None:
            return Policy(self._model_dir, self.device, self.compute_dtype, is_trained=False).forward
        return self.lora.off()(self.forward)  # a context manager decorates, too

    def publish(self, weights_dir: Path, version: int) -> Manifest:
        """As `write`, for engines, in the type that they serve; with `lora_publish` merged, the whole model that base
        and adapter are together."""
        if self._is_merged and self.lora is not None:
            return write_merged(self._model_dir, self.lora.adapter(), weights_dir, version=version)
        return self.write(weights_dir, version, self._served_as)

    @property
    def serves_what_it_trains(self) -> bool:
        """Whether what `publish` and `write` write is the same, bit for bit."""
        if self._served_as == "template":
            return stored_dtypes(self._model_dir) == {torch.float32}
        return self._served_as == torch.float32 and not self._is_merged

    @property
    def _served_as(self) -> torch.dtype | Literal["template"]:
        """The type that engines serve; an adapter's is that of the layers that it is added to."""
        if self._served_dtype is not None or self.lora is None:
            return self._served_dtype or "template"
        stored = stored_dtypes(self._model_dir) - {torch.float32}
        return next(iter(stored)) if len(stored) == 1 else torch.float32

    def write(
        self, weights_dir: Path, version: int, dtype: torch.dtype | Literal["template", "given"] = "given"
    ) -> Manifest:
        """What is trained as a directory of its own: all weights, or the adapter; as exactly as it is trained, unless
        in another type.

        Raises:
            WeightsError: they are not fit to be served. Nothing has been written then.
        """
        if self.lora is None:
            tensors: dict[str, Tensor] = revert_weight_conversion(self.model, self._exact_state())
            return write_weights(tensors, weights_dir, version=version, template_dir=self._model_dir, dtype=dtype)
        return write_adapter(
            self.lora.adapter(),
            weights_dir,
            name=self.adapter_name,
            version=version,
            base=self._base,
            dropout=self._dropout,
            dtype=None if isinstance(dtype, str) else dtype,
        )

    def load(self, weights_dir: Path) -> None:
        """Take over what another policy of the same model wrote, in place; its hashes are not checked.

        Raises:
            WeightsError: it belongs to another model, or to another way of training. Nothing has changed then.
        """
        if self.lora is not None:
            if not is_adapter(weights_dir):
                raise WeightsError(f"{weights_dir}: holds a whole model, and this run trains an adapter (--use-lora)")
            verify_adapter(weights_dir, self._base)
            return self.lora.load(read_adapter(weights_dir), weights_dir)
        if is_adapter(weights_dir):
            raise WeightsError(f"{weights_dir}: holds an adapter, and this run trains all weights: add --use-lora")
        loaded: dict[str, Tensor] = load_model(weights_dir, torch.float32).state_dict()
        require_shapes(weights_dir, self._exact_state(), loaded)
        self.model.load_state_dict(loaded)
        if self._master is not None:
            self._master.load(loaded)

    def _exact_state(self) -> dict[str, Tensor]:
        """All weights as exactly as they are trained, and buffers, by name."""
        state: dict[str, Tensor] = self.model.state_dict()
        return state if self._master is None else self._master.state_dict(self.model)

    def _computing(self) -> torch.autocast:
        """Have an adapter, which is in float32, computed in the model's type, as engines do."""
        is_mixed = self.lora is not None and self.compute_dtype != torch.float32
        return torch.autocast(self.device.type, self.compute_dtype, enabled=is_mixed)

    def _body(self, token_ids: Tensor, position_ids: Tensor, **kwargs: Any) -> Tensor:
        output = self.model.base_model(
            input_ids=token_ids[None].to(self.device),
            position_ids=position_ids[None].to(self.device),
            use_cache=False,
            **kwargs,
        )
        return output.last_hidden_state[0]  # type: ignore[no-any-return]

    def _project(self, hidden: Tensor) -> Tensor:
        with self._computing():
            return _shaped(self.model.get_output_embeddings()(hidden), self.model.config)

    @torch.no_grad()
    def _choose_attention(self, name: str) -> None:
        """Compare our way of computing logits with the model's own, on two short documents."""
        ids = [torch.arange(length) + 1 for length in _PROBE_LENS]
        given = [self.model(input_ids=part[None].to(self.device), use_cache=False).logits[0] for part in ids]
        expected = torch.cat(given).float()
        tolerance = _PROBE_TOLERANCE if self.compute_dtype == torch.float32 else 0.05
        positions = torch.cat([torch.arange(length) for length in _PROBE_LENS])
        own_attention = self.model.config._attn_implementation

        def is_same(**kwargs: Any) -> bool:
            hidden = self._body(torch.cat(ids), positions, **kwargs)
            difference = (self._project(hidden).float() - expected).abs().max()
            return bool(difference <= tolerance * expected.abs().max())

        # Its factors are those of the longest document of a pass, which two short documents cannot show.
        kinds_of_rope = _kinds_of_rope(self.model)
        if "dynamic" in kinds_of_rope:
            raise WeightsError(
                f"{name}: RoPE of type dynamic scales positions by the longest text that was fed before, so no "
                "log-prob can be computed twice: set rope_type to yarn or linear in its config.json"
            )
        self.model.set_attn_implementation(DOCUMENTS)
        try:
            self.is_flat = "longrope" not in kinds_of_rope and is_same(document_lens=_PROBE_LENS)
        except (TrainerError, TypeError):  # attention of another kind, or a forward that takes no further keywords
            self.is_flat = False
        if self.is_flat:
            return
        self.model.set_attn_implementation(own_attention)
        alone = torch.cat([self._body(part, torch.arange(len(part))) for part in ids])
        if (self._project(alone).float() - expected).abs().max() > tolerance * expected.abs().max():
            raise TrainerError(f"{name}: its logits are not its output layer applied to its last hidden states")


def load_model(model_dir: Path, dtype: torch.dtype) -> Any:
    """A causal language model from a local directory: no hub, no code of its own, no pickles, no dropout.

    Raises:
        WeightsError: transformers cannot make a model of it; its reason in one line.
    """
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise WeightsError(f"{model_dir}: transformers cannot load it: {reason[:300]}") from error
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # log-probs must be those of the model that sampled
    model.eval()
    return model


def _kinds_of_rope(model: Any) -> set[str]:
    """How a model's rotary embeddings are scaled, e.g. `{"default"}`; some have a kind for each type of layer."""
    kinds: set[str] = set()
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        kinds |= set(kind.values()) if isinstance(kind, dict) else {kind} if isinstance(kind, str) else set()
    return kinds


def _shaped(logits: Tensor, config: Any) -> Tensor:
    """What some models do to their logits after the output layer."""
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = torch.tanh(logits / cap) * cap
    elif divisor := getattr(config, "logits_scaling", None):
        logits = logits / divisor
    elif factor := getattr(config, "logit_scale", None):
        logits = logits * factor
    return logits


def compute_dtype(dtype: str, device: torch.device, model_dir: Path) -> torch.dtype:
    """The type to compute in: as asked for, else what suits the device and the model.

    Raises:
        ConfigError: it is float16, in which small gradients vanish.
    """
    refuse_float16(dtype, model_dir, on_gpu=device.type != "cpu")
    if dtype != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    if device.type == "cpu":
        return torch.float32
    stored = AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False).dtype
    return stored if isinstance(stored, torch.dtype) else torch.float32
