"""A rollout function to slime's documented signature: it asks the data source, the engine and its own reward."""

import asyncio

from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.sglang_rollout import GenerateState
from slime.utils.async_utils import run
from slime.utils.http_utils import post
from slime.utils.types import Sample


async def answer(args, sample: Sample) -> Sample:
    state = GenerateState(args)
    prompt_ids = state.tokenizer(sample.prompt, add_special_tokens=False)["input_ids"]
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    sampling = {"temperature": args.rollout_temperature, "max_new_tokens": 16}
    output = await post(url, {"input_ids": prompt_ids, "sampling_params": sampling, "return_logprob": True})
    drawn = output["meta_info"]["output_token_logprobs"]
    sample.tokens = prompt_ids + [entry[1] for entry in drawn]
    sample.response_length = len(drawn)
    sample.response = output["text"]
    sample.rollout_log_probs = [entry[0] for entry in drawn]
    sample.loss_mask = [1] * len(drawn)
    sample.update_from_meta_info(args, output["meta_info"])
    sample.reward = 1.0 if sample.response.startswith("yes") else -1.0
    return sample


async def answer_all(args, groups):
    return [list(await asyncio.gather(*(answer(args, sample) for sample in group))) for group in groups]


def generate_rollout(args, rollout_id, data_source, evaluation=False):
    groups = run(answer_all(args, data_source.get_samples(args.rollout_batch_size)))
    samples = [sample for group in groups for sample in group]
    if evaluation:
        rewards = [sample.reward for sample in samples]
        return RolloutFnEvalOutput(data={"mine": {"rewards": rewards, "truncated": [False] * len(rewards)}})
    return RolloutFnTrainOutput(samples=groups, metrics={"mine/rollout_id": rollout_id})
