"""What whole runs need: a share of the cores, and a model that can chat but has learned nothing, made in seconds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from openclaw_test.tiny.model import Recipe, new_model, render
from openclaw_test.tiny.text import random_conversation
from openclaw_test.tiny.tokenizer import learn_tokenizer


@pytest.fixture(autouse=True)
def trainers_have_a_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may take all cores for minutes, and leave nothing over."""
    monkeypatch.setenv("TRAINER_PRIORITY", "normal")


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(0)
    conversations = [random_conversation(rng) for _ in range(300)]
    tokenizer = learn_tokenizer(render(learn_tokenizer([]), conversations))
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("chat-model") / "model"
    tokenizer.save_pretrained(directory)
    new_model(tokenizer, Recipe()).save_pretrained(directory)
    return directory
