"""Runs this method's rollout on stored turns without training, and writes one file per sample.

python -m openclaw_opd.test_rollout --num-samples 10 --output-dir ./debug_rollouts
"""

from __future__ import annotations

import sys

from openclaw_opd.custom_rollout import generate_rollout
from slime.tools.inspection import main

if __name__ == "__main__":
    sys.exit(main(generate_rollout, "python -m openclaw_opd.test_rollout"))
