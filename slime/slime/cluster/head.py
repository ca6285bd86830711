"""`python -m slime.cluster.head PORT`: a Ray cluster on this machine, with a dashboard to submit jobs to.

`ray start --head` would do, but it turns 127.0.0.1 into the machine's outer address. Whoever starts this gives it a
secret in RAY_AUTH_TOKEN: Ray's control service listens on every interface, and answers only to those who know it.
"""

from __future__ import annotations

import signal
import sys
import threading

import ray

from slime.cluster.session import start_local


def main(dashboard_port: int) -> None:
    """Hold the cluster until SIGTERM or SIGINT, and end everything on it then."""
    told_to_stop = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: told_to_stop.set())
    start_local(include_dashboard=True, dashboard_port=dashboard_port)
    told_to_stop.wait()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
