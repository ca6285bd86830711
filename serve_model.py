"""Runs the server with capture on: `python serve_model.py --model-path DIR --port 8000 --gpu-ids 0,1`.

The first of three programs, and the published name of `python -m openclaw.server --enable-rl-intercept`; the others
are collect_rollouts.py and train_async.py.
"""

import sys

from openclaw.server import main

if __name__ == "__main__":
    sys.exit(main(prog="python serve_model.py", defaults={"server.enable_rl_intercept": True}))
