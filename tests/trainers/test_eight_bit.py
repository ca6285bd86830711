"""AdamW in 8 bits, torchao's own: close to AdamW, exact over a restart, a quarter of the memory.

`make env` puts the library beside the environment, not into it; here it is on the path while these tests run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from learners import batch_of, parameters_of, random_samples, trainer_of, write_policy
from slime.errors import ConfigError, WeightsError
from slime.trainers.torch import eight_bit, optimizer
from slime.trainers.torch.trainer import TorchTrainer
from torch import Tensor

LIBRARY = Path(sys.prefix) / "eight-bit"


@pytest.fixture(scope="module")
def torchao() -> Iterator[None]:
    assert (LIBRARY / "torchao").is_dir(), "torchao is missing: run `make env`"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(LIBRARY)])
        yield


@pytest.fixture(scope="module")
def wide_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy with matrices large enough to be quantised, and others that are not."""
    folder = tmp_path_factory.mktemp("wide") / "model"
    return write_policy(folder, vocab_size=128, hidden_size=64, intermediate_size=96)


def train(trainer: TorchTrainer, *seeds: int) -> None:
    for seed in seeds:
        assert not trainer.train(batch_of(random_samples(6, seed=seed))).skipped


def norm(tensors: dict[str, Tensor]) -> float:
    return sum(float(tensor.double().square().sum()) for tensor in tensors.values()) ** 0.5


@pytest.mark.usefixtures("torchao")
def test_the_weights_stay_close_to_those_of_adamw(wide_dir: Path) -> None:
    plain, small = (trainer_of(wide_dir, optimizer=name, lr=1e-3) for name in ("adamw", "adamw8bit"))
    at_first = parameters_of(plain)

    def apart() -> float:
        ours, theirs = parameters_of(small), parameters_of(plain)
        return norm({n: ours[n] - theirs[n] for n in ours}) / norm({n: theirs[n] - at_first[n] for n in ours})

    for trainer in (plain, small):
        train(trainer, 0)
    assert apart() < 1e-4, "a first step is made before anything is quantised"
    for trainer in (plain, small):
        train(trainer, 1, 2, 3, 4, 5)
    assert 1e-4 < apart() < 0.03


@pytest.mark.usefixtures("torchao")
def test_a_resumed_run_goes_on_bit_for_bit(wide_dir: Path, tmp_path: Path) -> None:
    through, stopped, resumed = (trainer_of(wide_dir, optimizer="adamw8bit", lr_warmup_steps=4) for _ in range(3))
    for trainer in (through, stopped):
        train(trainer, 0, 1)
    resumed.load(stopped.save(tmp_path))
    for trainer in (through, resumed):
        train(trainer, 2, 3)
    ours, theirs = (trainer._optimizer.state() for trainer in (through, resumed))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    assert all(torch.equal(value, parameters_of(resumed)[name]) for name, value in parameters_of(through).items())


@pytest.mark.usefixtures("torchao")
def test_a_moment_takes_a_byte_a_number(wide_dir: Path) -> None:
    trainer = trainer_of(wide_dir, optimizer="adamw8bit")
    train(trainer, 0)
    state = trainer._optimizer.state()
    parameters = trainer._optimizer.parameters
    quantised = {name for name, parameter in parameters.items() if f"exp_avg.{name}.codes" in state}
    assert quantised == {name for name, parameter in parameters.items() if eight_bit.is_quantised(parameter)}
    assert 0 < len(quantised) < len(parameters)
    for name in quantised:
        for moment in ("exp_avg", "exp_avg_sq"):
            codes, scale = state[f"{moment}.{name}.codes"], state[f"{moment}.{name}.scale"]
            num_bytes = codes.nbytes + scale.nbytes
            assert num_bytes == parameters[name].numel() * (1 + 4 / 256)
    assert all(tensor.dtype == torch.float32 for name, tensor in state.items() if not name.endswith(".codes"))


@pytest.mark.usefixtures("torchao")
def test_offloading_changes_no_bit(wide_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trainer_of(wide_dir, optimizer="adamw8bit")
    monkeypatch.setattr(optimizer, "offloads", lambda parameters, config: True)
    offloaded = trainer_of(wide_dir, optimizer="adamw8bit")
    for trainer in (plain, offloaded):
        train(trainer, 0, 1)
    assert all(torch.equal(value, parameters_of(offloaded)[name]) for name, value in parameters_of(plain).items())


@pytest.mark.usefixtures("torchao")
@pytest.mark.parametrize(("saved", "resumed"), [("adamw", "adamw8bit"), ("adamw8bit", "adamw")])
def test_the_moments_of_the_other_kind_are_refused(wide_dir: Path, tmp_path: Path, saved: str, resumed: str) -> None:
    trainer = trainer_of(wide_dir, optimizer=saved)
    train(trainer, 0)
    with pytest.raises(WeightsError, match=f"does not fit --optimizer {resumed}: no moments of the right kind"):
        trainer_of(wide_dir, optimizer=resumed).load(trainer.save(tmp_path))


def test_without_the_library_it_is_one_line_that_names_the_extra(
    policy_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    monkeypatch.setitem(sys.modules, "torchao", None)
    for attempt in (eight_bit.library, lambda: trainer_of(policy_dir, optimizer="adamw8bit")):
        with pytest.raises(ConfigError, match=r"^--optimizer adamw8bit needs torchao: pip install .*\[eight-bit\]"):
            attempt()
