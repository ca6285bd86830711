"""The rig that tests of rollouts over prompts share."""

from __future__ import annotations

from pathlib import Path

import pytest
from openclaw_test.tiny.model import Recipe, new_model
from openclaw_test.tiny.tokenizer import learn_tokenizer
from prompt_rig import Rig


@pytest.fixture(scope="session")
def chat_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory that holds a tokenizer with a chat template, and no weights."""
    directory = tmp_path_factory.mktemp("chat") / "model"
    tokenizer = learn_tokenizer([])
    tokenizer.save_pretrained(directory)
    new_model(tokenizer, Recipe()).config.save_pretrained(directory)
    return directory


@pytest.fixture
def rig(tmp_path: Path, chat_dir: Path) -> Rig:
    return Rig(tmp_path, chat_dir)
