"""A custom generate function to slime's documented signature: two calls of the engine around the answer of a tool."""

from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post
from slime.utils.types import Sample


async def generate(args, sample: Sample, sampling_params) -> Sample:
    state = GenerateState(args)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    sample.tokens = state.tokenizer(sample.prompt, add_special_tokens=False)["input_ids"]
    for turn in range(2):
        payload = {"input_ids": sample.tokens, "sampling_params": sampling_params, "return_logprob": True}
        output = await post(url, payload)
        drawn = output["meta_info"]["output_token_logprobs"]
        sample.append_response_tokens(
            args,
            tokens=[entry[1] for entry in drawn],
            log_probs=[entry[0] for entry in drawn],
            text=output["text"],
            meta_info=output["meta_info"],
        )
        if sample.status == Sample.Status.ABORTED:
            return sample
        if turn == 0:
            tool = state.tokenizer(" tool ", add_special_tokens=False)["input_ids"]
            sample.append_response_tokens(args, tokens=tool, trainable=False, text=" tool ")
    return sample
