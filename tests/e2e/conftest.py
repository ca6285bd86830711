"""A model that can chat but has learned nothing: the tiny model's shape and tokenizer, untrained; made in seconds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from openclaw_test.tiny.model import Recipe, new_model, render
from openclaw_test.tiny.text import random_conversation
from openclaw_test.tiny.tokenizer import learn_tokenizer


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
