"""The Ray cluster of a run: the one at `--ray-address`, or a local one of its own.

A local one listens on loopback only, sends no usage statistics and ends with the run, with everything on it;
of a cluster that was there before, only what this run placed is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants

from slime.config.output_paths import JOB_ENV
from slime.config.sections import ClusterConfig
from slime.errors import ConfigError

log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_LOGICAL_CPUS = 16
"""Actors ask for none, so that a small machine can hold all of them; this only has to be enough for Ray's own."""


@contextlib.contextmanager
def ray_session(cluster: ClusterConfig) -> Iterator[None]:
    """Join `cluster.ray_address`, or start a local cluster; leave it, or end it, at the end.

    Raises:
        ConfigError: there is no cluster at that address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    environment = worker_environment(cluster, os.environ)
    if cluster.ray_address:
        try:
            ray.init(address=cluster.ray_address, runtime_env=environment, log_to_driver=False)
        except (ConnectionError, ValueError) as error:
            raise ConfigError(
                f"no Ray cluster at {cluster.ray_address} ({str(error).splitlines()[0]}); "
                "start one with `ray start --head`, or leave --ray-address empty for a local one"
            ) from None
    else:
        start_local(runtime_env=environment, include_dashboard=cluster.dashboard)
    log.info("ray ready address=%s working_dir=%s", cluster.ray_address or "local", Path.cwd())
    try:
        yield
    finally:
        ray.shutdown()


def worker_environment(cluster: ClusterConfig, environ: Mapping[str, str]) -> dict[str, Any]:
    """Ray's runtime environment of the actors: without GPUs they share the cores with engines, and as many threads as
    cores in each would have them wait for each other. A job that says how many has said it; Ray takes it only once.
    """
    if cluster.train_gpus or '"OMP_NUM_THREADS"' in environ.get(JOB_ENV, ""):
        return {}
    return {"env_vars": {"OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", "1")}}


def start_local(**options: Any) -> None:
    """Start a cluster on this machine whose sockets are all on loopback.

    Ray resolves 127.0.0.1 to the machine's outer address and listens on every interface, unless it is told that the
    cluster has one machine. The variable tells so the processes that Ray starts, the attribute this one, which has read
    the variable already.

    Args:
        options: further ones of `ray.init`.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    ray.init(
        address="local",
        num_cpus=_LOGICAL_CPUS,
        dashboard_host=_LOOPBACK,
        _node_ip_address=_LOOPBACK,
        log_to_driver=False,
        logging_level=logging.WARNING,
        object_store_memory=_object_store_bytes(),
        _system_config={"worker_niceness": 0},  # 15 unless told: serving would stand behind everything else
        **options,
    )


def _object_store_bytes() -> int:
    """Batches are small; half a gibibyte, or less where /dev/shm is smaller (Ray would fall back to disk)."""
    stat = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else os.statvfs("/tmp")
    return int(min(512 * 2**20, max(80 * 2**20, stat.f_bavail * stat.f_frsize * 0.3)))


async def until_signalled(work: Awaitable[None]) -> None:
    """Do the work; SIGTERM or SIGINT ends it in order, a second one at once."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if task.cancelling():
            os._exit(130)
        log.info("stopping")
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    with contextlib.suppress(asyncio.CancelledError):
        await task
