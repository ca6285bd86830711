"""`python collect_rollouts.py --api-endpoint URL --output-dir DIR`: what a server captures, for a trainer to read.

The second of three programs; see `slime.tools.collecting`.
"""

import sys

from slime.tools.collecting import main

if __name__ == "__main__":
    sys.exit(main())
