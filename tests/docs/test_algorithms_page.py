"""docs/algorithms.md names every choice there is, and nothing that is not."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import slime.algorithms
from slime.config.leaves import leaves
from slime.config.sections import LossConfig

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
LOSS = {leaf.name: leaf for leaf in leaves().values() if leaf.section == "loss"}


@pytest.mark.parametrize("name", ["advantage_estimator", "baseline", "behaviour_correction", "kl_loss_type", "critic"])
def test_every_word_of_a_choice_is_on_the_page(name: str) -> None:
    for word in LOSS[name].choices:
        assert f"`{word}`" in PAGE or f"`--{name.replace('_', '-')} {word}`" in PAGE, f"{name}: {word}"


def test_every_flag_on_the_page_exists() -> None:
    flags = {leaf.flag for leaf in leaves().values()} | {f"--no-{leaf.flag[2:]}" for leaf in leaves().values()}
    of_others = {"--use-tis", "--disable-rewards-normalization"}  # slime's spelling
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", PAGE)) <= flags | of_others


def test_every_setting_of_the_loss_is_on_the_page() -> None:
    of_methods = {"w_rl", "w_opd", "teacher_divergence", "teacher_advantage_clip", "baseline_decay"}
    for field in dataclasses.fields(LossConfig):
        flag = "--" + field.name.replace("_", "-")
        negative = "--no-" + field.name.replace("_", "-")
        assert field.name in of_methods or flag in PAGE or negative in PAGE, flag


def test_every_function_named_in_a_table_is_where_it_says() -> None:
    folder = Path(slime.algorithms.__file__).parent
    named = re.findall(r"`(advantages|returns|losses|corrections|reductions|distillation)\.(\w+)`", PAGE)
    assert named
    for module, name in named:
        assert re.search(rf"^(def|class) {name}\b", (folder / f"{module}.py").read_text(), re.MULTILINE), name
