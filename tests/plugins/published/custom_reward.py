"""The reward class of the second published page, in our words; the sketch's model is a word list read from a file."""

import json
from pathlib import Path

import torch


def load_reward_model(checkpoint_path: str):
    weights = json.loads((Path(checkpoint_path) / "words.json").read_text())
    return lambda text: torch.tensor(sum(weights.get(word, 0.0) for word in text.lower().split()))


class CustomRewardModel:
    def __init__(self, checkpoint_path: str):
        self.model = load_reward_model(checkpoint_path)

    def tokenize(self, text: str) -> str:
        return text

    def compute_reward(self, prompt: str, response: str, next_feedback: str) -> float:
        inputs = self.tokenize(f"Prompt: {prompt}\nResponse: {response}\nFeedback: {next_feedback}")
        with torch.no_grad():
            return self.model(inputs).item()

    def batch_compute_rewards(self, batch_data):
        rewards = [self.compute_reward(row["prompt"], row["response"], row["feedback"]) for row in batch_data]
        return torch.tensor(rewards)
