"""What this method's rollout makes of stored turns, one file a sample; nothing is trained.

python -m openclaw_opd.test_rollout --num-samples 10 --output-dir ./debug_rollouts
"""

from __future__ import annotations

import sys

from openclaw_opd.custom_rollout import generate_rollout
from slime.tools.inspection import main

if __name__ == "__main__":
    sys.exit(main(generate_rollout, "python -m openclaw_opd.test_rollout"))
