"""Collects captured turns for a trainer: `python collect_rollouts.py --api-endpoint URL --output-dir DIR`.

The second of three programs; see `slime.tools.collecting`.
"""

import sys

from slime.tools.collecting import main

if __name__ == "__main__":
    sys.exit(main())
