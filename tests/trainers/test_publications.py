"""What a trainer publishes for engines, and what it keeps for itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from learners import batch_of, random_samples, trainer_of, write_policy
from slime.config.sections import LoraConfig
from slime.errors import WeightsError
from slime.trainers.torch.trainer import TorchTrainer
from slime.weights.directories import write_manifest
from slime.weights.models import WEIGHTS_FILE, read_tensors, read_weights, verify_weights, write_weights
from slime.weights.versions import Version, Versions

LORA = LoraConfig(use_lora=True, lora_rank=2)


def trained(model_dir: Path, **settings: object) -> TorchTrainer:
    trainer = trainer_of(model_dir, **settings)
    assert not trainer.train(batch_of(random_samples(4))).skipped
    return trainer


@pytest.fixture(scope="module")
def half_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose files are bfloat16, but for one tensor."""
    directory = write_policy(tmp_path_factory.mktemp("half") / "float32")
    tensors = {name: tensor.bfloat16() for name, tensor in read_weights(directory).items()}
    tensors["model.norm.weight"] = tensors["model.norm.weight"].float()
    half = directory.with_name("bfloat16")
    write_weights(tensors, half, version=0, template_dir=directory)
    (half / "manifest.json").unlink()
    return half


def test_each_tensor_is_published_in_the_type_of_the_models_files(half_dir: Path, tmp_path: Path):
    trainer = trained(half_dir)
    published = read_weights(trainer.publish(tmp_path / "published", 4))
    kept = read_weights(trainer.save(tmp_path) / "weights")
    given = read_weights(half_dir)
    assert {name: tensor.dtype for name, tensor in published.items()} == {n: t.dtype for n, t in given.items()}
    assert {tensor.dtype for tensor in kept.values()} == {torch.float32}, "what is trained on is kept exactly"
    for name, tensor in published.items():
        assert torch.equal(tensor, kept[name].to(tensor.dtype))
    file = tmp_path / "published" / WEIGHTS_FILE
    assert file.stat().st_size < 0.6 * (tmp_path / "checkpoint-1" / "weights" / WEIGHTS_FILE).stat().st_size
    assert verify_weights(tmp_path / "published").version == 4


def test_an_adapter_is_published_in_the_type_of_the_layers_it_is_added_to(half_dir: Path, tmp_path: Path):
    trainer = trained(half_dir, lora=LORA)
    published = read_tensors(trainer.publish(tmp_path / "published", 1) / "adapter_model.safetensors")
    kept = read_tensors(trainer.save(tmp_path) / "weights" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in published.values()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in kept.values()} == {torch.float32}
    assert all(torch.equal(tensor, kept[name].bfloat16()) for name, tensor in published.items())


@pytest.mark.parametrize("lora", [LoraConfig(), LORA])
def test_a_checkpoint_of_what_was_just_published_is_linked_to_it(policy_dir: Path, tmp_path: Path, lora: LoraConfig):
    trainer = trained(policy_dir, lora=lora)
    name = "adapter_model.safetensors" if lora.use_lora else WEIGHTS_FILE
    published = trainer.publish(tmp_path / "published", 9) / name
    checkpoint = trainer.save(tmp_path)
    assert (checkpoint / "weights" / name).samefile(published)
    other = trained(policy_dir, lora=lora).save(tmp_path / "alone")
    assert (other / "weights" / name).read_bytes() == published.read_bytes(), "the same bytes as without the link"
    assert not trainer.train(batch_of(random_samples(4, seed=1))).skipped
    assert not (trainer.save(tmp_path) / "weights" / name).samefile(published)
    resumed = trainer_of(policy_dir, lora=lora)
    found = resumed.resume(tmp_path)
    assert (found.step, found.version) == (2, 9), "the version that the checkpoint's weights grew from"


def test_merged_weights_are_published_whole_and_the_checkpoint_holds_the_adapter(policy_dir: Path, tmp_path: Path):
    trainer = trained(policy_dir, lora=LoraConfig(use_lora=True, lora_rank=2, lora_publish="merged"))
    published = trainer.publish(tmp_path / "published", 3)
    assert read_weights(published).keys() == read_weights(policy_dir).keys()
    assert verify_weights(published).version == 3
    checkpoint = trainer.save(tmp_path)
    assert sorted(path.name for path in (checkpoint / "weights").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
    ]


def test_a_value_that_the_served_type_cannot_hold_is_not_published(policy_dir: Path, tmp_path: Path):
    tensors = read_weights(policy_dir)
    tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], 1e6)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight holds a value that is not finite as torch\.float16"):
        write_weights(tensors, tmp_path / "w", version=1, template_dir=policy_dir, dtype=torch.float16)
    assert not (tmp_path / "w").exists()


def test_a_checkpoint_of_before_the_journal_is_resumed_and_its_weights_get_the_next_number(
    policy_dir: Path, tmp_path: Path
):
    """There the n-th update was version n, and state.json says nothing of versions."""
    trainer = trained(policy_dir)
    checkpoint = trainer.save(tmp_path)
    state = json.loads((checkpoint / "state.json").read_text())
    del state["version"]
    (checkpoint / "state.json").write_text(json.dumps(state))
    (checkpoint / "manifest.json").unlink()
    write_manifest(checkpoint, 1)
    resumed = trainer_of(policy_dir)
    found = resumed.resume(tmp_path)
    assert (found.step, found.version, found.checkpoint) == (1, None, checkpoint)
    versions = Versions(tmp_path)
    versions.open(checkpoint.parent)
    versions.resume(step=found.step, version=found.version)
    taken = versions.take()
    assert taken == Version(2, parent=1, step=1, checkpoint=1)
    published = resumed.publish(tmp_path / "published", taken.version)
    assert (published / WEIGHTS_FILE).read_bytes() == (checkpoint / "weights" / WEIGHTS_FILE).read_bytes()
