"""``onceward health``: the check for a supervisor or a container engine."""

import socket
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health as health_service  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2_grpc
from typer.testing import CliRunner, Result

from onceward.common.errors import ConfigurationError
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.operate import health
from onceward.operate.cli import app


def asked(address: str) -> Result:
    return CliRunner().invoke(app, ["health", "--coordinator", address])


@pytest.fixture
def stopping() -> Iterator[str]:
    """A server that runs but takes no calls, like a coordinator that is about to leave."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    servicer = health_service.HealthServicer()
    servicer.enter_graceful_shutdown()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def test_a_coordinator_that_serves_is_healthy_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    coordinator = EmbeddedCoordinator(tmp_path)
    try:
        assert asked(coordinator.address).exit_code == 0
    finally:
        coordinator.close()
    gone = asked(coordinator.address)
    assert gone.exit_code == 1
    assert "does not answer: UNAVAILABLE" in gone.stderr


def test_a_coordinator_that_leaves_is_not_healthy(stopping: str) -> None:
    found = asked(stopping)
    assert found.exit_code == 1
    assert "takes no calls" in found.stderr


def test_a_silent_peer_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = asked(f"127.0.0.1:{silent.getsockname()[1]}")
    assert found.exit_code == 1
    assert "does not answer" in found.stderr


def test_an_invalid_address_is_reported() -> None:
    assert isinstance(asked("nowhere").exception, ConfigurationError)
