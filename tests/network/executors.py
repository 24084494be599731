"""A standalone Spark with two workers, one of which reaches the brokers through its own links.

The brokers advertise a host name. The second worker runs in a mount namespace where that name is another address.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.network.world import SECOND_HOST, LinkedHarness
from tests.support.spark_cluster import SMALL, standalone

__all__ = ["STANDALONE", "NotPermittedError", "two_workers"]

STANDALONE = "standalone"
_SECOND = 3
"""The worker at 127.0.0.3."""
_BY_ROOT = ["unshare", "--mount"]
_BY_ANYBODY = ["unshare", "--map-root-user", "--mount"]
_WITH_HOSTS = ["sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"']


class NotPermittedError(Exception):
    """No mount namespace can be made on this machine, so the result is unknown."""


@contextmanager
def two_workers(world: LinkedHarness) -> Iterator[str]:
    """Yield the arguments of spark-submit for a cluster of two workers. Raises NotPermittedError."""
    hosts = world.directory / "hosts"
    hosts.write_text(f"{SECOND_HOST} localhost\n")
    apart = [*_unshare(), *_WITH_HOSTS, str(hosts)]
    paths = world.paths
    world.paths = replace(paths, drivers=world.by_name)
    try:
        with standalone(world, {_SECOND: apart}) as (master, workers, _):
            world.workers = workers
            yield f"--master {master} {SMALL} --conf spark.executor.cores=1"
    finally:
        world.workers = ()
        world.paths = paths


def _unshare() -> list[str]:
    said = ""
    for command in (_BY_ROOT, _BY_ANYBODY):
        try:
            # binding the host's own file onto itself changes nothing
            done = subprocess.run(
                [*command, *_WITH_HOSTS, "/etc/hosts", "true"], capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
        else:
            if done.returncode == 0:
                return command
            said = done.stderr.strip()
    raise NotPermittedError(f"One executor could not be cut off by itself: no mount namespace can be made ({said}).")
