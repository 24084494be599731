"""One broker for all workers of a test run: four of them would spend a tenth of two cores on waiting."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from onceward.dev.jars import fetch_progress
from onceward.dev.kafka import LocalKafka

__all__ = ["SharedKafka", "shared_kafka"]


@dataclass(frozen=True, kw_only=True)
class SharedKafka:
    """A running broker that other tests use at the same time, so that none may stop it."""

    bootstrap_servers: str
    cluster_id: str


@contextmanager
def shared_kafka(directory: Path) -> Iterator[SharedKafka]:
    """The broker of the run that owns `directory`, at transaction.version 2; it looks for timed-out transactions every
    200 ms.

    The first process that asks starts the broker, and at its end waits until no other one uses it.
    """
    found = directory / "kafka.json"
    with (directory / "kafka.users").open("wb") as users:
        with (directory / "kafka.start").open("wb") as start:
            fcntl.flock(start, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            local = None if found.exists() else _started()
            if local is not None:
                shared = SharedKafka(bootstrap_servers=local.bootstrap_servers, cluster_id=local.cluster_id)
                found.write_text(json.dumps(asdict(shared)))
        try:
            yield SharedKafka(**json.loads(found.read_text()))
        finally:
            if local is not None:
                fcntl.flock(users, fcntl.LOCK_EX)
                found.unlink()
                local.stop()


def _started() -> LocalKafka:
    local = LocalKafka(transaction_timeout_scan_ms=200, progress=fetch_progress("the broker's"))
    local.start()
    return local
