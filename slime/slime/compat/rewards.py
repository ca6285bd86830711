"""Rewards of slime's samples: `reward(args, sample)`, and all samples of a group at once with `--group-rm`.

Sample ─ values by name ─▶ RewardHook ─▶ Verdict          Turn ─ sample_of_turn ─▶ what a live reward sees as `sample`
"""

from __future__ import annotations

from functools import partial
from typing import Any

from slime.compat.sample import Sample
from slime.judging.plugin import PluginJudge
from slime.plugins.rewards import asked, text_of_all
from slime.types import Message, Turn, Verdict


class SampleJudge(PluginJudge):
    """Judges replies to prompts by a reward plug-in; `next_state` is empty there."""

    async def judge_sample(self, sample: Sample, args: Any) -> Verdict:
        """The verdict on a reply to a prompt of a prompt set."""
        values = _values(sample) | {"args": args, "config": self.hook.settings}
        (verdict,) = await self.ask(f"sample={sample.index}", partial(self.hook.ask, values, self.timeout_s), None)
        return verdict

    async def judge_group(self, samples: list[Sample], args: Any) -> list[Verdict]:
        """The verdicts on all replies to a prompt, by a hook that takes them in one call, `(args, samples)`."""
        rows = [_values(sample) for sample in samples]
        values = {"samples": samples, "rows": rows, "args": args, "config": self.hook.settings}
        what = f"group={samples[0].group_index}"
        return await self.ask(what, partial(self.hook.ask, values, self.timeout_s), len(samples))


def sample_of_turn(turn: Turn) -> Sample:
    """A turn of a conversation as slime's sample."""
    is_cut = turn.completion.finish_reason == "length"
    further = {"source": turn.source, "next_state": text_of_all(turn.next_state or ()), "messages": list(turn.messages)}
    return Sample(
        prompt=asked(turn.messages),
        response=turn.completion.text,
        tokens=[*turn.prompt_ids, *turn.completion.token_ids],
        response_length=len(turn.completion.token_ids),
        rollout_log_probs=list(turn.completion.logprobs),
        session_id=turn.session_id,
        metadata={**turn.details, **further},
        status=Sample.Status.TRUNCATED if is_cut else Sample.Status.COMPLETED,
    )


def _values(sample: Sample) -> dict[str, Any]:
    prompt = sample.prompt
    messages: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    return {
        "prompt": prompt if isinstance(prompt, str) else asked(messages),
        "response": sample.response,
        "next_state": "",
        "messages": messages,
        "reply": {"role": "assistant", "content": sample.response},
        "turn": None,
        "sample": sample,
    }
