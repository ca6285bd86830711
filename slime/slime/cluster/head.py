"""`python -m slime.cluster.head PORT`: a Ray cluster on this machine, with a dashboard to submit jobs to.

`ray start --head` would do, but it turns 127.0.0.1 into the machine's outer address. The caller passes a secret in
RAY_AUTH_TOKEN: other users of this machine reach its loopback too, and Ray answers only requests that carry the secret.

`ray.init` has no settings for two things. Ray's job agent binds a fixed port, and where that is taken it lives on
without HTTP and every submission fails with "No available agent"; here it binds any free one. Jobs find their cluster
through Ray's temp directory, which may name another Ray of this machine; here it is private.

The dashboard answers seconds before jobs can be submitted. The line `takes jobs` on stdout says that they can.
"""

from __future__ import annotations

import functools
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import ray

from slime.cluster.session import start_local
from slime.engines.launch import tail

try:  # no public option says which port the job agent binds, nor whether it has registered
    from ray._private.parameter import RayParams
    from ray._private.ray_constants import KV_NAMESPACE_DASHBOARD
    from ray._private.utils import write_ray_address
    from ray.dashboard.consts import DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX
    from ray.experimental.internal_kv import _internal_kv_exists
except ImportError as error:
    sys.exit(f"Ray {ray.__version__} cannot be started from here ({error}): `ray start --head` before the script")

_AGENT_DEADLINE_S = 120.0


def main(dashboard_port: int) -> None:
    """Hold the cluster until SIGTERM or SIGINT, and end everything on it then; exit where it would take no jobs."""
    told_to_stop = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: told_to_stop.set())
    RayParams.__init__ = functools.partialmethod(RayParams.__init__, dashboard_agent_listen_port=0)  # type: ignore[method-assign,assignment]
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as own_dir:
        start_local(include_dashboard=True, dashboard_port=dashboard_port, _temp_dir=own_dir)
        write_ray_address(ray.get_runtime_context().gcs_address, own_dir)
        if not _takes_jobs(told_to_stop):
            agent_log = tail(Path(own_dir) / "session_latest/logs/dashboard_agent.log")
            sys.exit(f"Ray's job agent did not register within {_AGENT_DEADLINE_S:.0f} s; its log:\n{agent_log}")
        print("takes jobs", flush=True)
        told_to_stop.wait()
        ray.shutdown()


def _takes_jobs(told_to_stop: threading.Event) -> bool:
    """Wait until the job agent has registered its HTTP address; true as well where the head is told to stop first."""
    key = f"{DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX}{ray.get_runtime_context().get_node_id()}".encode()
    deadline = time.monotonic() + _AGENT_DEADLINE_S
    while time.monotonic() < deadline:
        if _internal_kv_exists(key, namespace=KV_NAMESPACE_DASHBOARD) or told_to_stop.wait(0.2):
            return True
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]))
