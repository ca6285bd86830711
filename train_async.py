"""Trains on collected rollouts: `python train_async.py --rollout-dir DIR --checkpoint-dir DIR --method combine`.

The third of three programs, and an alias of `python slime/train.py` with the same flags, e.g. `--gpus 2,3`. While
serve_model.py runs, it trains beside it and publishes weights to it; otherwise it trains offline on the directory.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "slime"))

from slime.config.loader import load_config
from slime.config.output_paths import output_path
from slime.errors import ConfigError
from slime.monitor import configure_logging
from slime.tools.collecting import training_settings
from train import main

PROG = "python train_async.py"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog=PROG, add_help=False, allow_abbrev=False)
    parser.add_argument("--rollout-dir", type=Path)
    given, flags = parser.parse_known_args()
    configure_logging("info")
    try:
        placed, defaults = [], {}
        if given.rollout_dir:
            output = load_config([], prog=PROG, sections=["output"]).output
            rollout_dir = output_path("--rollout-dir", given.rollout_dir, output, os.environ)
            placed, defaults = asyncio.run(training_settings(rollout_dir))
    except ConfigError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(main([*placed, *flags], prog=PROG, defaults=defaults))
