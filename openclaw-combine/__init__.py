"""Combine: a reward says how good a reply was, a teacher that has read the hint says where.

Of the ids that the top-k selection loss weighs the streams are declared here, so that whatever loads a file of this
folder knows them.
"""

from slime.fields import register_field

register_field(
    "teacher_topk_ids", level="token_k", dtype="int64", fill=-1, meaning="k ids of the teacher's support; -1: none"
)
register_field("teacher_topk_logprobs", level="token_k", meaning="the teacher's log-probs of those ids")
register_field("rollout_topk_logprobs", level="token_k", meaning="the policy's of those ids, when the reply was scored")
