"""A Ray that we start is reached from this machine alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

LISTENING = """
import psutil, ray
from slime.cluster.session import start_local

start_local(include_dashboard=True)
ray.get(ray.remote(lambda: 1).remote())
here = psutil.Process()
for process in (here, *here.children(recursive=True)):
    for socket in process.net_connections("inet"):
        if socket.status == psutil.CONN_LISTEN:
            print(process.name(), socket.laddr.ip.removeprefix("::ffff:"))
ray.shutdown()
"""


@pytest.mark.slow
def test_every_socket_of_a_cluster_of_our_own_is_on_loopback() -> None:
    done = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True, timeout=200, check=True)
    sockets = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    assert {"gcs_server", "raylet"} <= {name for name, _ in sockets}
    assert [(name, ip) for name, ip in sockets if ip not in ("127.0.0.1", "::1")] == []
