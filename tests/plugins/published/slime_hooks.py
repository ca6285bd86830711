"""The hooks around a rollout, to slime's documented signatures."""

from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.utils.types import Sample

calls = []


def sample_hook(args, sample: Sample, *, rollout_id, evaluation):
    calls.append(("sample_hook", rollout_id, evaluation))
    sample.metadata["seen"] = True


def dynamic_filter(args, samples: list[Sample], **kwargs):
    assert all(sample.metadata["seen"] for sample in samples)
    return DynamicFilterOutput(keep=True)


def buffer_filter(args, rollout_id, buffer: list[list[Sample]], num_samples: int) -> list[list[Sample]]:
    taken = buffer[-num_samples:]
    del buffer[-num_samples:]
    return taken


def sample_filter(args, data: list[list[Sample]]) -> None:
    data[0][0].remove_sample = True


def process_all_samples(args, all_samples, data_source):
    calls.append(("all_samples", len(all_samples)))


def post_process_rewards(args, samples: list[Sample]):
    raw = [sample.get_reward_value(args) for sample in samples]
    return raw, [reward - 0.5 for reward in raw]


def convert_samples(args, samples: list[Sample]) -> dict:
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [2 * sample.reward for sample in samples],
        "raw_reward": [sample.reward for sample in samples],
        "truncated": [0 for _ in samples],
        "sample_indices": [sample.index for sample in samples],
        "loss_masks": [[1] + [0] * (sample.response_length - 1) for sample in samples],
        "rollout_log_probs": [sample.rollout_log_probs for sample in samples],
    }


def log_rollout(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
    calls.append(("log", rollout_id, len(samples)))
    return True


def log_eval(rollout_id, args, data, extra_metrics):
    calls.append(("eval_log", rollout_id, sorted(data)))
    return False


class DataSource:
    def __init__(self, args):
        self.args = args
        self.saved = []

    def get_samples(self, num_samples):
        return [
            [Sample(prompt="mine", label="1") for _ in range(self.args.n_samples_per_prompt)]
            for _ in range(num_samples)
        ]

    def add_samples(self, samples):
        raise AssertionError("nothing was aborted")

    def save(self, rollout_id):
        self.saved.append(rollout_id)

    def load(self, rollout_id=None):
        assert rollout_id == 0

    def __len__(self):
        return 1
