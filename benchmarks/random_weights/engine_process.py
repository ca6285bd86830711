"""Shared by the engine benchmarks: random models of a few shapes, and an embedded engine in its own process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {  # about 1M parameters, as the demo's model
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 1024,
    },
    "small": {  # 3.4M parameters
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 1024,
    },
    "0.6b": {  # Qwen3-0.6B's; for a GPU
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "4b": {  # Qwen3-4B's; for a GPU of 80 GB
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
}

KEEPALIVE_S = 2.0
"""How long the measuring side keeps an idle connection: less than the five seconds of a server under uvicorn."""

CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def build_model(directory: Path, shape: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Path:
    """A random Qwen3 of that shape with a byte-level tokenizer and a chat template; drawn on `device`."""
    torch.manual_seed(0)
    alphabet = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    fast: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    config = Qwen3Config(
        **SHAPES[shape], max_position_embeddings=8192, tie_word_embeddings=True, eos_token_id=fast.eos_token_id
    )
    with torch.device(device):
        Qwen3ForCausalLM(config).to(dtype).save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]

    def cpu_s(self) -> float:
        """Processor seconds it has used: what other processes on the machine do shows less in them than in time."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Not running for a while, so that it takes nothing from another (some servers spin when they are idle)."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def engine_process(model_dir: Path, *flags: str) -> Iterator[Served]:
    """An embedded engine with one thread."""
    command = [sys.executable, "-m", "slime.engines.embedded", "--model-path", str(model_dir), "--num-threads", "1"]
    with served(command, "/health", *flags) as server:
        yield server


@contextlib.contextmanager
def served(command: list[str], health: str, *flags: str, deadline_s: float = 120.0) -> Iterator[Served]:
    """A server that takes `--port`, once it answers at `health`; it ends with the block. Its output is dropped."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--port", str(port), "--log-level", "warning", *flags],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + deadline_s
        while not _answers(url + health):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"did not start; try it: {' '.join(command)}")
            time.sleep(0.1)
        yield Served(url, process)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
