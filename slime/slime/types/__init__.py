"""The nouns that flow through every loop: frozen dataclasses of the standard library that check themselves when made.

A client's request and our reply become a `Turn`; what the client sends next becomes the turn's next
state; a judge turns both into a `Verdict`; turn and verdict become a `Sample`; samples compared with
each other form a `SampleGroup`; the trainer takes a `Batch` and answers with a `TrainReport`.

    request + Completion ─▶ Turn ─ next_state ─▶ Verdict ─▶ Sample ─▶ SampleGroup ─▶ Batch ─▶ TrainReport
"""

from slime.types.samples import Batch, Sample, SampleGroup, TrainReport
from slime.types.turns import Completion, Message, SamplingParams, Turn, TurnKind, TurnState, VersionSpan
from slime.types.verdicts import LARGEST_REWARD, Feedback, Judgement, Verdict

__all__ = [
    "LARGEST_REWARD",
    "Batch",
    "Completion",
    "Feedback",
    "Judgement",
    "Message",
    "Sample",
    "SampleGroup",
    "SamplingParams",
    "TrainReport",
    "Turn",
    "TurnKind",
    "TurnState",
    "Verdict",
    "VersionSpan",
]
