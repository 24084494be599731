"""The connection to the coordinator, and the processes that a driver starts while it is open."""

import collections
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from onceward.client.operators import OperatorClient
from onceward.common.errors import CoordinatorLostError
from onceward.coordinator.service.embedded import EmbeddedCoordinator

CHILDREN = 100
"""With the fault present, three of them died."""


def start_children(directory: str) -> None:
    """Start programs as PySpark starts its JVM, while a channel is open; print how they ended."""
    with EmbeddedCoordinator(Path(directory)) as coordinator, OperatorClient(coordinator.address) as people:
        people.jobs()
        ends: collections.Counter[int] = collections.Counter()
        for _ in range(CHILDREN):
            child = subprocess.Popen(
                ["true"], stdin=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
            )
            ends[child.wait()] += 1
    print(json.dumps(ends))


def test_a_program_started_beside_an_open_channel_lives(tmp_path: Path) -> None:
    code = f"from {__name__} import start_children; start_children({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == {"0": CHILDREN}, done.stderr


def test_a_connection_attempt_has_time_to_succeed() -> None:
    """A server on a busy machine accepts the connection, and sends its first bytes later."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.5)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with OperatorClient(address, patience=0) as people:
            asking = threading.Thread(target=lost, args=(people,))
            asking.start()
            first, _ = listener.accept()
            with first, pytest.raises(TimeoutError):
                listener.accept()
        asking.join()


def lost(people: OperatorClient) -> None:
    with pytest.raises(CoordinatorLostError):
        people.jobs()
