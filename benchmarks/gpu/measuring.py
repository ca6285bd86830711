"""Shared by the parts of `on_gpu.sh`: arguments, incremental results, timing, memory, peak FLOP rate.

part ─ figure ─▶ Results ─▶ DIR/PART.json, rewritten after each figure: a part that is cut off keeps what it measured
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers


def arguments(description: str) -> argparse.ArgumentParser:
    """The flags of every part."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--shape", default="0.6b", help="tiny, small, 0.6b or 4b: of the random model")
    parser.add_argument("--tiny", action="store_true", help="the tiny shape and next to no work: does it run at all?")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    return parser


class Results:
    """Figures of one part, by case, in a file that is whole after each of them.

    >>> Results(Path("engine-0.6b.json"), "engine", "cuda").add("16 × 512", {"tokens_per_s": 4100.0})
    """

    def __init__(self, path: Path, part: str, device: str) -> None:
        self._path = path
        self.cases: dict[str, dict[str, Any]] = {}
        self._head = {
            "part": part,
            "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._write(is_complete=False)

    def add(self, case: str, figures: dict[str, Any]) -> None:
        """Keep and print the figures of one case."""
        self.cases[case] = figures
        self._write(is_complete=False)
        print(f"{self._head['part']} {case}: " + ", ".join(f"{k} {_short(v)}" for k, v in figures.items()), flush=True)

    def attempt(self, case: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Add what `measure` finds; a shape that does not fit into memory is a finding, too."""
        try:
            self.add(case, measure())
        except torch.OutOfMemoryError as error:
            self.add(case, {"failed": f"out of memory: {str(error).splitlines()[0][:200]}"})
        free_memory()

    def finish(self) -> int:
        """Say that all cases are there; the exit status: 1 if one failed or none was measured."""
        self._write(is_complete=True)
        return int(not self.cases or any("failed" in figures for figures in self.cases.values()))

    def _write(self, is_complete: bool) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_suffix(".part")
        content = {**self._head, "is_complete": is_complete, "cases": self.cases}
        scratch.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(scratch, self._path)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def synchronise(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def median_s(work: Callable[[], Any], device: str, rounds: int, warm_up: int = 1) -> float:
    """Median seconds of a piece of work, the device's part included."""
    times = []
    for number in range(warm_up + rounds):
        synchronise(device)
        start = time.perf_counter()
        work()
        synchronise(device)
        if number >= warm_up:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_flops(device: str, dtype: torch.dtype, size: int) -> float:
    """Floating-point operations a second of a square matrix product of that size: what utilisation is a share of."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / median_s(lambda: left @ right, device, rounds=10, warm_up=3)


def free_memory() -> None:
    """Give back what no tensor uses, and count the peak anew."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory_gb(device: str) -> float:
    """The most that tensors of this process took since `free_memory`, in 10⁹ bytes; on a CPU of the whole process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def compute_type(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32
