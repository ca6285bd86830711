"""On-policy distillation: what was written is weighed by the same model after it has read the hint.

Of the ids that the top-k loss compares the streams are declared here, so that whatever loads a file of this folder
knows them.
"""

from slime.fields import register_field

register_field(
    "teacher_topk_ids", level="token_k", dtype="int64", fill=-1, meaning="k ids of the teacher's support; -1: none"
)
register_field("teacher_topk_logprobs", level="token_k", meaning="the teacher's log-probs of those ids")
