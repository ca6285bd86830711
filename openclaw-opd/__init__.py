"""On-policy distillation: the same model, given the hint, is the teacher that scores the sampled tokens.

The top-k loss's sample fields are registered here, so that loading any file of this folder registers them.
"""

from slime.fields import register_field

register_field(
    "teacher_topk_ids", level="token_k", dtype="int64", fill=-1, meaning="k ids of the teacher's support; -1: none"
)
register_field("teacher_topk_logprobs", level="token_k", meaning="the teacher's log-probs of those ids")
