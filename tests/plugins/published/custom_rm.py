"""The reward model of the first published page, in our words: a sequence classifier behind `get_reward_model`."""

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class CustomPRM:
    def __init__(self, model_path: str):
        self.tokenizer = AutoTokenizer.from_pretrained(model_path)
        self.model = AutoModelForSequenceClassification.from_pretrained(model_path, torch_dtype=torch.bfloat16)
        self.model.eval()

    def score(self, prompt: str, response: str, next_state: str) -> float:
        text = f"Prompt: {prompt}\nResponse: {response}\nOutcome: {next_state}"
        inputs = self.tokenizer(text, return_tensors="pt", truncation=True, max_length=2048)
        with torch.no_grad():
            logits = self.model(**inputs).logits
        return torch.softmax(logits, dim=-1)[0, 1].item()


def get_reward_model(config):
    return CustomPRM(config["prm_model_path"])
