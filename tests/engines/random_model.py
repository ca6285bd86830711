"""A tiny Qwen3 with random weights and a byte-level tokenizer: real architecture and files, no training.

What it says means nothing; what an engine reports about it can be checked against a forward pass.
"""

from __future__ import annotations

from pathlib import Path

import torch
from slime.weights.adapters import Adapter, LoraShape, fingerprint, write_adapter
from slime.weights.models import read_weights
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def build_random_adapter(base_dir: Path, directory: Path, version: int, name: str = "ada", rank: int = 4) -> Path:
    """Write an adapter of a random model, of every linear layer, that changes what the model says; by version."""
    generator = torch.Generator().manual_seed(version)
    pairs = {
        tensor_name.removesuffix(".weight"): (
            torch.randn((rank, weight.shape[1]), generator=generator) / weight.shape[1] ** 0.5,
            0.15 * torch.randn((weight.shape[0], rank), generator=generator),
        )
        for tensor_name, weight in sorted(read_weights(base_dir).items())
        if tensor_name.endswith("_proj.weight")
    }
    targets = tuple(sorted({module.rpartition(".")[2] for module in pairs}))
    adapter = Adapter(LoraShape(rank, 2.0 * rank, targets), pairs)
    write_adapter(adapter, directory, name=name, version=version, base=fingerprint(base_dir))
    return directory


def build_random_model(directory: Path, seed: int = 0) -> Path:
    """Write a model directory; the same seed gives the same weights, another seed another policy.

    The vocabulary is the 256 bytes followed by Qwen's special tokens, so any text is one token a byte.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS[:3]])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in SPECIAL_TOKENS[3:]])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    config = Qwen3Config(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        dtype=torch.float32,
    )
    generator_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():  # an untrained head is all but uniform; sharper logits make a wrong log-prob visible
        model.lm_head.weight.mul_(8.0)
        # Control tokens are sampled seldom at temperature 1, and never at 0.3.
        model.lm_head.weight[fast.convert_tokens_to_ids(list(SPECIAL_TOKENS))] = 0.0
    torch.random.set_rng_state(generator_state)
    model.save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory
