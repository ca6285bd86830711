"""slime's data model, under slime's names, for files written to its documentation.

    a prompt ─▶ Sample(prompt=…) ─ generate ─▶ tokens, response, log-probs ─ reward ─▶ reward ─▶ slime.types.Sample

Such files import them as `slime.utils.types.Sample`, `slime.rollout.base_types.RolloutFnTrainOutput`, …: see
`compat.install`. Everything of ours works on `slime.types.Sample`, which is frozen and checks itself.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


class SampleStatus(enum.Enum):
    """How far a sample has come."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"  # the reply reached its length limit
    ABORTED = "aborted"  # the engine broke it off: its group goes back to the data source
    FAILED = "failed"  # something around the engine went wrong (a tool, a service)


_STATUS_OF = {"stop": SampleStatus.COMPLETED, "length": SampleStatus.TRUNCATED, "abort": SampleStatus.ABORTED}

_SAMPLED = (
    *("tokens", "response", "response_length", "rollout_log_probs", "teacher_log_probs", "loss_mask"),
    *("weight_versions", "policy_versions", "reward", "remove_sample", "status"),
)
"""What a retry begins anew."""


@dataclass
class Sample:
    """One trajectory of a prompt, filled in on its way from the data source to the trainer.

    >>> Sample(group_index=0, index=1, prompt="2 + 2 =", label="4")

    Attributes:
        rollout_id: what samples cut from one trajectory share; None: the sample is a trajectory by itself.
        prompt: the text as it is fed, or OpenAI messages.
        tokens: ids of prompt and response; the response is its last `response_length` ids.
        loss_mask, rollout_log_probs: one entry a response token; no mask = all of them train.
        weight_versions: the engine's word for the weights behind each call, e.g. `["default", "3"]`.
        remove_sample: leave it out of training.
        train_metadata: values of registered fields, by name: one number, or one entry a response token.
        prompt_ids: ours: the prompt as ids, so that nothing in it can be taken for a control token.
        policy_versions: ours: the policy version of each response token, where it is known exactly.
    """

    Status: ClassVar[type[SampleStatus]] = SampleStatus

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | str | None = None
    prompt: str | list[dict[str, Any]] = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    apply_chat_template_kwargs: dict[str, Any] | None = None
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    teacher_log_probs: list[float] | None = None
    status: SampleStatus = SampleStatus.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    prompt_ids: tuple[int, ...] = ()
    policy_versions: list[int] | None = None

    @property
    def effective_response_length(self) -> int:
        """Response tokens that train."""
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    def get_reward_value(self, args: Any) -> Any:
        """The reward; that of `--reward-key` where a reward has several."""
        key = getattr(args, "reward_key", None)
        return self.reward[key] if key and isinstance(self.reward, Mapping) else self.reward

    def append_response_tokens(
        self,
        args: Any = None,
        *,
        tokens: Sequence[int] | None = None,
        log_probs: Sequence[float] | None = None,
        trainable: bool = True,
        meta_info: Mapping[str, Any] | None = None,
        text: str | None = None,
        update_terminal_info: bool = True,
    ) -> None:
        """Append to the response and keep everything that runs beside it in step.

        Args:
            trainable: sampled by the model, with a log-prob each; what a tool wrote is not, and has none.
            meta_info: of the engine's answer: weight version and finish reason are taken from it.
            update_terminal_info: whether its finish reason becomes the sample's status.

        Raises:
            ValueError: log-probs are missing, superfluous, or not one a token.
        """
        ids = [int(token) for token in tokens or ()]
        if log_probs is not None and len(log_probs) != len(ids):
            raise ValueError(f"{len(log_probs)} log-probs for {len(ids)} tokens")
        if ids and trainable and log_probs is None:
            raise ValueError("trainable tokens need the log-probs that they were sampled with")
        if ids and not trainable and log_probs is not None:
            raise ValueError("tokens that the model did not sample have no log-probs")
        mask = self.loss_mask if self.loss_mask is not None else [1] * self.response_length
        known = self.rollout_log_probs
        if known is None:
            if self.response_length:
                raise ValueError("the response so far has no log-probs; append to it from its beginning")
            known = []
        self.tokens = [*self.tokens, *ids]
        self.response_length += len(ids)
        self.response += text or ""
        self.loss_mask = [*mask, *[int(trainable)] * len(ids)]
        self.rollout_log_probs = [*known, *(float(p) for p in log_probs or [0.0] * len(ids))]
        self.update_from_meta_info(args, meta_info or {}, update_terminal_info=update_terminal_info)

    def update_from_meta_info(
        self, args: Any, meta_info: Mapping[str, Any], *, update_terminal_info: bool = True
    ) -> None:
        """Take weight version and finish reason from an engine's answer."""
        if (version := meta_info.get("weight_version")) is not None:
            self.weight_versions = [*self.weight_versions, str(version)]
        reason = meta_info.get("finish_reason")
        kind = reason.get("type") if isinstance(reason, Mapping) else reason
        if update_terminal_info and kind in _STATUS_OF:
            self.status = _STATUS_OF[kind]

    def reset_for_retry(self) -> None:
        """Back to what the data source gave: the prompt and nothing sampled."""
        fresh = Sample()
        for name in _SAMPLED:
            setattr(self, name, getattr(fresh, name))

    def to_dict(self) -> dict[str, Any]:
        """All attributes, undeclared ones included; the status by its value."""
        return {**vars(self), "status": self.status.value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Sample:
        """What `to_dict` gave; attributes that are not declared are kept too."""
        sample = cls()
        vars(sample).update({**values, "status": SampleStatus(values.get("status", "pending"))})
        return sample


Group = list[Any]
"""The samples of one prompt; an entry is a list where one trajectory was cut into several samples."""


@dataclass
class RolloutFnTrainOutput:
    """What a rollout function gives: groups of samples, and figures for the metrics."""

    samples: list[Group]
    metrics: dict[str, Any] | None = None


@dataclass
class RolloutFnEvalOutput:
    """What it gives when it evaluates: `{"set name": {"rewards": […], "truncated": […], "samples": […]}}`."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, Any] | None = None


@dataclass
class DynamicFilterOutput:
    """Whether a group is worth training, and if not, why: the reason is counted in the metrics."""

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


def flatten(samples: Sequence[Any]) -> list[Sample]:
    """The samples of nested lists, in order."""
    return [leaf for entry in samples for leaf in (flatten(entry) if isinstance(entry, list | tuple) else [entry])]
