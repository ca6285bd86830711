"""Weights directories: what was written is what is read, and anything else is refused with one line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from slime.errors import WeightsError
from slime.weights.models import read_weights, verify_weights, write_weights
from torch import Tensor


def state_of(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"embed": torch.randn(7, 4, generator=generator), "layer.weight": torch.randn(4, 4, generator=generator)}


@pytest.fixture
def base_dir(tmp_path: Path) -> Path:
    """A model directory as a user would give it, with more in it than weights need."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text('{"model_type": "qwen3"}')
    (base / "tokenizer.json").write_text("{}")
    (base / "chat_template.jinja").write_text("{{ messages }}")
    (base / "modeling_custom.py").write_text("raise SystemExit")
    save_file(state_of(), base / "model.safetensors")
    return base


def test_written_weights_verify_and_read_back_exactly(base_dir: Path, tmp_path: Path) -> None:
    state = state_of(seed=1)
    written = write_weights(state, tmp_path / "out" / "version-3", version=3, template_dir=base_dir)
    assert verify_weights(tmp_path / "out" / "version-3") == written
    assert written.version == 3
    assert set(written.files) == {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}
    read = read_weights(tmp_path / "out" / "version-3")
    assert read.keys() == state.keys()
    assert all(torch.equal(read[name], state[name]) for name in state)


def test_a_directory_without_manifest_is_version_zero(base_dir: Path) -> None:
    assert verify_weights(base_dir).version == 0
    assert read_weights(base_dir).keys() == state_of().keys()


def test_sharded_weights_are_read_through_their_index(base_dir: Path, tmp_path: Path) -> None:
    state = state_of()
    (base_dir / "model.safetensors").unlink()
    for number, name in enumerate(state):
        save_file({name: state[name]}, base_dir / f"model-{number}.safetensors")
    weight_map = {name: f"model-{number}.safetensors" for number, name in enumerate(state)}
    (base_dir / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert read_weights(base_dir).keys() == state.keys()
    assert set(write_weights(state, tmp_path / "one", version=1, template_dir=base_dir).files) >= {"model.safetensors"}
    assert not (tmp_path / "one" / "model.safetensors.index.json").exists()
    (base_dir / "model-1.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"no model-1\.safetensors, though"):
        read_weights(base_dir)


def test_tied_tensors_are_written_as_the_template_has_them(base_dir: Path, tmp_path: Path) -> None:
    state = state_of()
    write_weights({**state, "head": state["embed"]}, tmp_path / "tied", version=1, template_dir=base_dir)
    assert read_weights(tmp_path / "tied").keys() == state.keys()
    both = {**state, "head": state["embed"].clone()}
    save_file(both, base_dir / "model.safetensors")
    write_weights({**state, "head": state["embed"]}, tmp_path / "both", version=1, template_dir=base_dir)
    assert torch.equal(read_weights(tmp_path / "both")["head"], state["embed"])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"embed": torch.full((7, 4), torch.nan)}, "embed holds a value that is not finite"),
        ({"embed": torch.zeros(4, 7)}, r"embed has shape \(4, 7\), and should have \(7, 4\)"),
        ({"embed": torch.zeros(7, 4, dtype=torch.int64)}, r"embed has dtype torch\.int64"),
        ({"extra": torch.zeros(1)}, "extra is not a tensor of"),
        ({"embed": None}, "embed of .* is missing"),
    ],
)
def test_weights_that_an_engine_could_not_serve_are_not_published(
    base_dir: Path, tmp_path: Path, change: dict[str, Tensor | None], complaint: str
) -> None:
    state = {name: tensor for name, tensor in {**state_of(), **change}.items() if tensor is not None}
    with pytest.raises(WeightsError, match=complaint):
        write_weights(state, tmp_path / "bad", version=1, template_dir=base_dir)
    assert not list(tmp_path.glob("*bad*")), "a refused publication leaves nothing behind"


def flip_a_byte(weights_dir: Path) -> None:
    content = bytearray((weights_dir / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (weights_dir / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (flip_a_byte, r"model\.safetensors is corrupt"),
        (lambda d: os.truncate(d / "model.safetensors", 100), r"model\.safetensors has 100 bytes"),
        (lambda d: (d / "tokenizer.json").unlink(), r"tokenizer\.json is missing"),
        (lambda d: (d / "model.safetensors.index.json").write_text("{}"), "was added after the manifest"),
        (lambda d: (d / "manifest.json").write_text("{}"), "not a manifest"),
        (lambda d: (d / "config.json").unlink(), r"no config\.json: not a Hugging Face model directory"),
        (lambda d: (d / "model.safetensors").unlink(), r"no \*\.safetensors: no weights to load"),
        (shutil.rmtree, "no such directory"),
    ],
)
def test_a_damaged_directory_is_refused_by_name_in_one_line(
    base_dir: Path, tmp_path: Path, damage: Callable[[Path], None], complaint: str
) -> None:
    weights_dir = tmp_path / "version-1"
    write_weights(state_of(), weights_dir, version=1, template_dir=base_dir)
    damage(weights_dir)
    with pytest.raises(WeightsError, match=complaint) as caught:
        verify_weights(weights_dir)
    assert str(weights_dir) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pickled_weights_are_named_and_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(WeightsError, match="pickles, which are never loaded"):
        read_weights(tmp_path)


def test_publishing_again_replaces_whole_and_clears_what_a_killed_writer_left(base_dir: Path, tmp_path: Path) -> None:
    write_weights(state_of(1), tmp_path / "w", version=1, template_dir=base_dir)
    (tmp_path / ".w.partial").mkdir()
    (tmp_path / ".w.partial" / "half").write_text("")
    write_weights(state_of(2), tmp_path / "w", version=2, template_dir=base_dir)
    assert verify_weights(tmp_path / "w").version == 2
    assert torch.equal(read_weights(tmp_path / "w")["embed"], state_of(2)["embed"])
    assert not list(tmp_path.glob(".w.*"))


def test_a_writer_killed_before_the_rename_publishes_nothing(base_dir: Path, tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import os, signal, sys
        import torch
        from pathlib import Path
        from slime.weights.models import read_weights, write_weights

        Path.rename = lambda self, target: os.kill(os.getpid(), signal.SIGKILL)
        base, target = sys.argv[1:]
        write_weights(read_weights(base), target, version=1, template_dir=base)
        """
    )
    target = tmp_path / "version-1"
    killed = subprocess.run([sys.executable, "-c", program, str(base_dir), str(target)], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / ".version-1.partial" / "manifest.json").exists(), "the kill came when all was written"
    assert not target.exists()
    write_weights(state_of(), target, version=1, template_dir=base_dir)
    assert verify_weights(target).version == 1
