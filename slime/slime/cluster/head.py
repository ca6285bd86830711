"""`python -m slime.cluster.head PORT`: a Ray cluster on this machine, with a dashboard to submit jobs to.

`ray start --head` would do, but it turns 127.0.0.1 into the machine's outer address. Whoever starts this gives it a
secret in RAY_AUTH_TOKEN: Ray's control service listens on every interface, and answers only to those who know it.

Other Rays of this machine, living and dead, are kept out of the way, for which `ray.init` has no settings. Where one
has the usual port, the agent that takes jobs would go without any, and no job would be taken: it gets a free one. And
a job looks for its cluster in the directory of Ray's files, where the name of another might stand: it gets its own.
"""

from __future__ import annotations

import functools
import signal
import sys
import tempfile
import threading

import ray
from ray._private.parameter import RayParams
from ray._private.utils import write_ray_address

from slime.cluster.session import start_local
from slime.engines.launch import free_port


def main(dashboard_port: int) -> None:
    """Hold the cluster until SIGTERM or SIGINT, and end everything on it then."""
    told_to_stop = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: told_to_stop.set())
    RayParams.__init__ = functools.partialmethod(RayParams.__init__, dashboard_agent_listen_port=free_port())  # type: ignore[method-assign,assignment]
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as own_dir:
        start_local(include_dashboard=True, dashboard_port=dashboard_port, _temp_dir=own_dir)
        write_ray_address(ray.get_runtime_context().gcs_address, own_dir)
        told_to_stop.wait()
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
