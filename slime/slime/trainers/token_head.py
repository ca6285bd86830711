"""The output layer in chunks: log-probs, entropies and KL at the trainable positions, never all logits at once.

With a vocabulary of 150,000 the logits of 8,192 tokens are 5 GB; here they are made a chunk at a time, and
once more on the way back. Each sample's temperature divides its logits, as it did when they were sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from slime.algorithms.losses import entropy, exact_kl

CHUNK_ELEMENTS = 1 << 26
"""Logits held at once: 256 MB of float32."""

_NEVER = -1e30
"""A logit of probability 0; of −∞ alone no logarithm of a sum has a gradient."""


@dataclass(frozen=True)
class TokenHead:
    """Hidden states and the output layer that reads them.

    Attributes:
        hidden: [N, H] at the positions that predict trainable tokens.
        project: the model's output layer, [n, H] → [n, V], with whatever the model does to its logits.
        temperatures: [N]
        vocab_size: V, by which chunks are measured.
    """

    hidden: Tensor
    project: Callable[[Tensor], Tensor]
    temperatures: Tensor
    vocab_size: int

    def __getitem__(self, tokens: slice) -> TokenHead:
        """The head of some of the tokens."""
        return replace(self, hidden=self.hidden[tokens], temperatures=self.temperatures[tokens])

    def logits(self) -> Tensor:
        """[N, V] in float32, divided by the temperatures."""
        return self.project(self.hidden).float() / self.temperatures[:, None]

    def logprobs_and_entropy(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Log-prob of each target, [N], and the entropy of each distribution, [N], the latter without gradient."""
        logprobs, entropies = self._chunked(_logprobs_and_entropy, targets)
        return logprobs, entropies

    def topk_logprobs(self, ids: Tensor, temperature: float | None = None) -> Tensor:
        """Log-probs of k ids a token, [N, k] → [N, k], with gradient; logits are made once for all k.

        Args:
            ids: one below 0 stands for none; what is given beside it is not to be read.
            temperature: of the distribution that is asked about; each sample's own unless given.
        """
        (logprobs,) = self._at(temperature)._chunked(_topk_logprobs, ids.clamp(min=0))
        return logprobs

    def topk_and_tail_logprobs(self, ids: Tensor, temperature: float | None = None) -> tuple[Tensor, Tensor]:
        """As `topk_logprobs`, and the log-prob of all other ids together, [N], from the logits themselves.

        One less the sum of k probabilities is rounding where the policy is nearly certain; this is not.
        """
        logprobs, tail = self._at(temperature)._chunked(_topk_and_tail, ids)
        return logprobs, tail

    @torch.no_grad()
    def untempered_logprobs(self, targets: Tensor) -> Tensor:
        """Log-prob of each target at temperature 1, [N], without gradient."""
        return self._at(1.0).logprobs_and_entropy(targets)[0]

    def entropy(self) -> Tensor:
        """The entropy of each distribution, [N], with gradient."""
        (entropies,) = self._chunked(lambda head: (entropy(head.logits()),))
        return entropies

    def kl_to(self, reference: TokenHead) -> Tensor:
        """The exact KL to another head's distributions at the same tokens, [N], with gradient."""
        (divergence,) = self._chunked(lambda head, other: (exact_kl(head.logits(), other.logits()),), reference)
        return divergence

    def _at(self, temperature: float | None) -> TokenHead:
        """The head at one temperature for all tokens; itself if None."""
        if temperature is None:
            return self
        return replace(self, temperatures=torch.full_like(self.temperatures, temperature))

    def _chunked(self, function: Callable[..., tuple[Tensor, ...]], *others: Tensor | TokenHead) -> tuple[Tensor, ...]:
        """Apply to a chunk of tokens at a time, of the head and of what goes with its tokens; the results together."""
        total, step = len(self.hidden), max(1, CHUNK_ELEMENTS // self.vocab_size)
        if total <= step:
            return function(self, *others)
        chunks = [slice(start, start + step) for start in range(0, total, step)]
        # The logits of a chunk are not kept for the way back; they are computed again.
        results = [
            checkpoint(function, self[chunk], *(other[chunk] for other in others), use_reentrant=False)
            for chunk in chunks
        ]
        return tuple(torch.cat(parts) for parts in zip(*results, strict=True))


def _topk_logprobs(head: TokenHead, ids: Tensor) -> tuple[Tensor]:
    logits = head.logits()
    return (logits.gather(-1, ids) - torch.logsumexp(logits, dim=-1, keepdim=True),)


def _topk_and_tail(head: TokenHead, ids: Tensor) -> tuple[Tensor, Tensor]:
    logits = head.logits()
    normaliser = torch.logsumexp(logits, dim=-1)
    logprobs = logits.gather(-1, ids.clamp(min=0)) - normaliser[:, None]
    padded = torch.nn.functional.pad(logits, (0, 1), value=_NEVER)  # the last column takes what stands for no id
    others = padded.scatter(-1, ids.where(ids >= 0, logits.shape[-1]), _NEVER)
    return logprobs, torch.logsumexp(others, dim=-1) - normaliser


def _logprobs_and_entropy(head: TokenHead, targets: Tensor) -> tuple[Tensor, Tensor]:
    logits = head.logits()
    normaliser = torch.logsumexp(logits, dim=-1)
    logprobs = logits.gather(-1, targets[:, None]).squeeze(-1) - normaliser
    with torch.no_grad():  # H = log Z − Σ p·logit, from the same logits
        expected = (torch.exp(logits - normaliser[:, None]) * logits).sum(-1)
        entropies = normaliser - expected
    return logprobs, entropies
