"""CPU scheduling of the trainer on a machine without GPUs: engines and server run first.

A task that wakes up preempts an idle one (SCHED_IDLE) at once, a merely nice one when its time slice ends. With four
conversations without a pause on two cores, and new weights 2.5 times a second, the 99th percentile of the time to
first token is 1.1 times a quiet run's with SCHED_IDLE and 2.4 times with niceness; see
`benchmarks/serving_while_training.py`.

Linux may weigh sessions against each other before it looks at their processes (`autogroup`), which is why engines,
server and trainer share one session, and only have process groups of their own (`slime.engines.die_with_parent`).
"""

from __future__ import annotations

import os
import sys


def step_back() -> None:
    """Yield the cores to all other tasks. For the calling thread, and those it starts later."""
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)
