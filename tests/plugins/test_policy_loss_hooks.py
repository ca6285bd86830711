"""What hooks on the policy loss may give, and where they are refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from slime.config.checks.contradictions import check_policy_loss_hooks
from slime.config.sections import LossConfig, PluginConfig
from slime.errors import ConfigError, PluginError
from slime.plugins.calling import NamedCall
from slime.plugins.hooks import LOSS, PG_REDUCER, TIS
from slime.plugins.losses import LossHook, load_loss
from slime.trainers.policy_hooks import PolicyLossHooks, load_policy_loss_hooks, reduced, weighed

MASKS = [torch.ones(3)]


def offered(losses: torch.Tensor) -> dict[str, Any]:
    return {"pg_loss": losses, "loss_masks": MASKS, "total_lengths": [5], "response_lengths": [3]}


def losses() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0], requires_grad=True)


@pytest.mark.parametrize(
    ("weigh", "words"),
    [
        (lambda pg_loss: pg_loss, r"gave a tensor of shape \(3,\); it gives \(pg_loss, modified_masks, metrics\)"),
        (lambda pg_loss: (pg_loss[:2], MASKS, {}), r"shape \(2,\) as pg_loss; the response has 3 tokens"),
        (lambda pg_loss: (pg_loss.detach(), MASKS, {}), "a pg_loss without a gradient"),
        (lambda pg_loss: (pg_loss / 0, MASKS, {}), "gave pg_loss that is not finite"),
        (lambda pg_loss: (pg_loss, MASKS[0], {}), r"gave masks of a tensor of shape \(3,\)"),
        (lambda pg_loss: (pg_loss, [*MASKS, *MASKS], {}), "gave masks of list of 2"),
        (lambda pg_loss: (pg_loss, [torch.ones(2)], {}), r"as modified_masks\[0\]; the response has 3 tokens"),
        (lambda pg_loss: (pg_loss, [MASKS[0] / 2], {}), "other values than 0 and 1"),
        (lambda pg_loss: (pg_loss, MASKS, [1]), "metrics of type list"),
        (lambda pg_loss: (pg_loss, MASKS, {"a": 1.0}), "gave float as metric 'a'"),
        (lambda pg_loss: (pg_loss, MASKS, {"a": torch.full((3,), torch.nan)}), "gave metric 'a' that is not finite"),
    ],
)
def test_weights_that_are_none(weigh: Callable[..., Any], words: str) -> None:
    with pytest.raises(PluginError, match=words):
        weighed(NamedCall.match(weigh, TIS.names), offered(losses()))


@pytest.mark.parametrize(
    ("reduce", "words"),
    [
        (lambda: 3.0, "gave float; it gives a function"),
        (lambda: lambda x: x, r"reduced to a tensor of shape \(3,\)"),
        (lambda: lambda x: 1.0, "reduced to float"),
        (lambda: lambda x: x.detach().sum(), "a number without a gradient"),
        (lambda: lambda x: x.sum() / 0, "gave a loss that is not finite"),
        (lambda: lambda x: x.nothing(), "AttributeError: 'Tensor' object has no attribute 'nothing'"),
    ],
)
def test_reducers_that_are_none(reduce: Callable[..., Any], words: str) -> None:
    with pytest.raises(PluginError, match=words):
        reduced(NamedCall.match(reduce, PG_REDUCER.names), offered(losses()), losses())


def test_infinite_losses_are_not_the_plug_ins_fault() -> None:
    hook = NamedCall.match(lambda pg_loss: (pg_loss, MASKS, {}), TIS.names)
    infinite = torch.tensor([1.0, torch.inf, 3.0], requires_grad=True)
    assert weighed(hook, offered(infinite))[0].tolist() == [1.0, torch.inf, 3.0]


WEIGH = "def custom_tis(*, pg_loss, loss_masks, **kwargs):\n    return pg_loss, loss_masks, {}\n"
REDUCE = "def pg_loss_reducer(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):\n    return sum\n"


def load(tmp_path: Path, source: str, *, correction: Any = "decoupled", loss_fn: LossHook | None = None) -> Any:
    file = tmp_path / "inside.py"
    file.write_text(source)
    name = "custom_tis_function_path" if "custom_tis" in source else "custom_pg_loss_reducer_function_path"
    loss_fn = loss_fn or load_loss("openclaw_combine.custom_loss")
    plugin = PluginConfig(**{name: str(file)})
    loss = LossConfig(behaviour_correction=correction)
    check_policy_loss_hooks(plugin, loss, loss_fn.call.place, loss_fn.asks_for)
    return load_policy_loss_hooks(plugin)


def test_files_in_slimes_signatures_are_found(tmp_path: Path) -> None:
    assert load(tmp_path, WEIGH).weigh.asks_for == {"pg_loss", "loss_masks"}
    (tmp_path / "other").mkdir()
    assert load(tmp_path / "other", REDUCE, correction="tis").reduce is not None
    assert load_policy_loss_hooks(PluginConfig()) == PolicyLossHooks()


def test_what_is_not_on_offer_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="asks for 'advantages', which is not one of"):
        load(tmp_path, WEIGH.replace("pg_loss,", "pg_loss, advantages,", 1))


@pytest.mark.parametrize("correction", ["tis", "mis", "icepop", "none"])
def test_weights_beside_other_weights_are_refused(tmp_path: Path, correction: str) -> None:
    with pytest.raises(ConfigError, match=f"--behaviour-correction decoupled .--use-tis., not of {correction}"):
        load(tmp_path, WEIGH, correction=correction)


def own_loss(policy_logprobs, sum_of_sample_mean):
    return sum_of_sample_mean(policy_logprobs)


@pytest.mark.parametrize("source", [WEIGH, REDUCE])
def test_a_loss_that_would_not_call_them_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(ConfigError, match=r"test_policy_loss_hooks\.py:own_loss would never call it"):
        load(tmp_path, source, loss_fn=LossHook(NamedCall.match(own_loss, LOSS.names)))
