"""Measures how much builds of the tiny model vary: seeds × instruction sets × idle or busy core.

    python benchmarks/learning/tiny_builds.py [--seeds 0 1 2 3] [--sets default avx2 avx512] [--cores free taken]
                                              [--out FILE]

A build is that of `openclaw-rl tiny-model`, in its own process. The instruction set is forced on ATen, MKL and oneDNN
alike, as on a processor without others. With a busy core, another process computes continuously on the build's core.
Builds of one seed and set must be byte-identical; each prints the lowest of the shares that
`tests/openclaw_test/test_tiny_model.py` bounds. `--out` gets one JSON line per finished build; builds already in it are
skipped. A table of all is printed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SETS = {"default": ("default", "SSE4_2", "SSE41"), "avx2": ("avx2", "AVX2", "AVX2"), "avx512": ("avx512", "", "")}
"""What ATen, MKL and oneDNN are told."""

BUSY = "x = 1\nwhile True: x = x * 3 % 1000003"
MEASURE = """
import dataclasses, json, sys, torch
from pathlib import Path
from openclaw_test.tiny.abilities import measure_abilities
torch.set_num_threads(1)
print(json.dumps(dataclasses.asdict(measure_abilities(Path(sys.argv[1])))))
"""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One build of the grid: `Cell(0, "avx2", "taken")`."""

    seed: int
    instructions: str
    core: str


def build(cell: Cell) -> dict[str, Any]:
    """Build and measure one cell: CPU seconds, digest of the weights, and what the model can do."""
    aten, mkl, onednn = SETS[cell.instructions]
    forced = {"ATEN_CPU_CAPABILITY": aten, "MKL_ENABLE_INSTRUCTIONS": mkl, "ONEDNN_MAX_CPU_ISA": onednn}
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | {name: value for name, value in forced.items() if value}
    core = min(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as scratch, core_taken(core) if cell.core == "taken" else no_load():
        model_dir = Path(scratch) / "model"
        command = [sys.executable, "-m", "openclaw.cli", "tiny-model", str(model_dir), "--seed", str(cell.seed)]
        if cell.core == "taken":
            command = ["taskset", "-c", str(core), *command]
        before, start = _cpu_of_children(), time.monotonic()
        subprocess.run(command, check=True, env=environment, capture_output=True, timeout=4 * 3600)
        wall, cpu = time.monotonic() - start, _cpu_of_children() - before
        digest = hashlib.blake2b((model_dir / "model.safetensors").read_bytes(), digest_size=8).hexdigest()
        measured = subprocess.run(
            [sys.executable, "-c", MEASURE, str(model_dir)],
            check=True, env=environment, capture_output=True, text=True, timeout=3600,
        )  # fmt: skip
    able = json.loads(measured.stdout.splitlines()[-1])
    return {**dataclasses.asdict(cell), "cpu_s": round(cpu, 1), "wall_s": round(wall, 1), "digest": digest, **able}


@contextlib.contextmanager
def core_taken(core: int) -> Iterator[None]:
    """A process that computes on this core until the block ends."""
    busy = subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


@contextlib.contextmanager
def no_load() -> Iterator[None]:
    yield


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one line a build, the weakest wish by name."""
    lines = [
        "| seed | instructions | core | CPU s | weights | right unasked | plain | least kept | least right |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        least = []
        for part in ("kept", "right"):
            name = min(row[part], key=row[part].get)
            least.append(f"{100 * row[part][name]:.1f} ({name})")
        head = f"{row['seed']} | {row['instructions']} | {row['core']} | {row['cpu_s']:.0f} | `{row['digest'][:8]}`"
        lines.append(f"| {head} | {100 * row['accuracy']:.1f} | {100 * row['plain']:.1f} | {' | '.join(least)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--cores", nargs="+", choices=["free", "taken"], default=["free", "taken"])
    parser.add_argument("--out", type=Path, default=Path("tiny_builds.jsonl"))
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    for seed in options.seeds:
        for instructions in options.sets:
            for core in options.cores:
                cell = Cell(seed, instructions, core)
                if any(dataclasses.asdict(cell).items() <= row.items() for row in rows):
                    continue
                rows.append(build(cell))
                with options.out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
                print(table(rows[-1:]).splitlines()[-1], flush=True)
    print(table(rows))
    digests: dict[tuple[int, str], set[str]] = {}
    for row in rows:
        digests.setdefault((row["seed"], row["instructions"]), set()).add(row["digest"])
    differing = [place for place, found in digests.items() if len(found) > 1]
    print(f"{len(rows)} builds; seeds and sets whose bytes differ with the load: {differing or 'none'}")


if __name__ == "__main__":
    main()
