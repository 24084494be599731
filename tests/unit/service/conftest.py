"""An embedded coordinator per test, with a checker for documents of kind ``checked``."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from onceward.client.calls import open_channel
from onceward.client.operators import OperatorClient
from onceward.client.session import CoordinatorClient, connect
from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.protocol.values import Author, Document


def check(document: Document, base: Document | None, author: Author) -> None:
    """Accept version 1 only, with an ``offset`` that does not go backwards."""
    if document.version != 1:
        raise ValueError(f"version {document.version} is not known, only 1")
    if base is not None and document.body["offset"] < base.body["offset"]:
        raise ValueError(f"offset {document.body['offset']} is behind {base.body['offset']}")


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[EmbeddedCoordinator]:
    with EmbeddedCoordinator(tmp_path / "state", checkers=Checkers({"checked": check})) as coordinator:
        yield coordinator


@pytest.fixture(params=["socket", "direct"])
def client(request: pytest.FixtureRequest, coordinator: EmbeddedCoordinator) -> Iterator[CoordinatorClient]:
    channel = coordinator.channel() if request.param == "direct" else None
    broken = lambda: coordinator.failed  # noqa: E731
    with connect(coordinator.address, patience="10s", broken=broken, channel=channel) as client:
        yield client


@pytest.fixture
def people(coordinator: EmbeddedCoordinator) -> Iterator[OperatorClient]:
    with OperatorClient(coordinator.address) as people:
        yield people


@pytest.fixture
def channel(coordinator: EmbeddedCoordinator) -> Iterator[grpc.Channel]:
    with open_channel(coordinator.address) as channel:
        yield channel


@pytest.fixture
def on() -> Iterator[Callable[..., EmbeddedCoordinator]]:
    """Start embedded coordinators for a test and close them at its end."""
    with ExitStack() as stack:

        def start(state_dir: Path, **options: Any) -> EmbeddedCoordinator:
            return stack.enter_context(EmbeddedCoordinator(state_dir, **options))

        yield start
