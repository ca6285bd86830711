"""`torchrun … slime/train_grpo.py FLAG …`: the published name of `python slime/train.py`, which places its ranks.

torchrun starts as many of these as it was told to; the first one runs, the others end at once, and all are waited for.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from train import main

PROG = "slime/train_grpo.py"
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

if __name__ == "__main__":
    # Taken away, not only read: what runs below has ranks and addresses of its own.
    torchrun = {name: os.environ.pop(name, "") for name in _TORCHRUN}
    if torchrun["RANK"] in ("", "0"):
        number = torchrun["WORLD_SIZE"] or "1"
        note = f"one of {number} processes runs; Ray places the ranks: --train-gpus 0,1,2,3 --rollout-gpus 4,5,6,7"
        print(f"{PROG}: note: {note}", file=sys.stderr)
        sys.exit(main(prog=PROG))
