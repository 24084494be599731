"""The gRPC server around the engine, on one event loop."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc  # type: ignore[import-untyped]

from onceward.coordinator.errors import ConfigurationError, StoreError
from onceward.coordinator.protocol.values import JobName
from onceward.coordinator.service.committers import Committers
from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.service.doors import CallsDoor, Entrance, HealthDoor, behind
from onceward.coordinator.service.engine import Engine
from onceward.coordinator.service.group_commit import GroupCommit
from onceward.coordinator.service.intake import Intake
from onceward.coordinator.service.job_summaries import JobSummaries
from onceward.coordinator.service.operators import operator_service
from onceward.coordinator.service.orphans import Orphans
from onceward.coordinator.service.participants import participant_service
from onceward.coordinator.service.peers import Guard
from onceward.coordinator.service.reports import Reports
from onceward.coordinator.service.rights_file import RightsFile
from onceward.coordinator.service.tls import ServerTls
from onceward.coordinator.service.watchers import Watchers
from onceward.coordinator.store.store import Store
from onceward.coordinator.v1 import operators_pb2, participants_pb2
from onceward.coordinator.wire.channel import KeepAlive
from onceward.coordinator.wire.limits import (
    MAX_CALLS_OF_PEER,
    MAX_CONCURRENT_RPCS,
    MAX_MESSAGE_BYTES,
    MAX_RESPONSE_BYTES,
    MAX_STREAMS,
)

__all__ = ["CoordinatorServer", "ServerOptions"]

_SERVICES = tuple(
    service.full_name
    for file in (participants_pb2, operators_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
)
_GRACE_S = 1.0
_UNREAD_BYTES = 4 * MAX_MESSAGE_BYTES
"""Per call; enough for 5 MB/s over a path of 50 ms."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options of a server."""

    reflection: bool = False
    max_concurrent_rpcs: int = MAX_CONCURRENT_RPCS
    keep_alive: KeepAlive = field(default_factory=KeepAlive)
    tls: ServerTls | None = None
    rights: RightsFile | None = None
    committers: Committers | None = None
    """Used to settle jobs without a driver. None inside a driver, which does that itself."""


def _wall() -> datetime:
    return datetime.now(UTC)


class CoordinatorServer:
    """The coordinator's server. Create, start and stop it inside one running event loop."""

    def __init__(
        self,
        store: Store,
        *,
        options: ServerOptions | None = None,
        checkers: Checkers | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = _wall,
    ) -> None:
        """Raises StoreError when the store cannot be read, ConfigurationError for a broken plug-in."""
        self._options = options or ServerOptions()
        self._watchers = Watchers()
        self._failed = asyncio.Event()
        self.engine = Engine(
            store,
            clock=clock,
            wall=wall,
            checkers=checkers if checkers is not None else Checkers.installed(),
            changed=self._changed,
            failed=self._failed.set,
        )
        self._group_commit = GroupCommit(self.engine)
        self._orphans: Orphans | None = None
        if self._options.committers is not None:
            self._orphans = Orphans(self.engine, self._group_commit, self._options.committers, wall=wall)
        self._health = health.aio.HealthServicer()
        self._reports = Reports()
        self._server = self._make_server(wall)

    async def start(self, *targets: str) -> list[int]:
        """Listen on gRPC targets such as ``127.0.0.1:7878`` or ``unix:/path``. Returns their ports (1 for a socket).

        Raises ConfigurationError when one cannot be bound, or a certificate cannot be used.
        """
        credentials = None if self._options.tls is None else self._options.tls.credentials()
        ports = []
        for target in targets:
            try:
                # a socket's file has its own protection, and clients use no TLS on it
                if credentials is None or target.startswith("unix:"):
                    ports.append(self._server.add_insecure_port(target))
                else:
                    ports.append(self._server.add_secure_port(target, credentials))
            except RuntimeError:
                raise ConfigurationError(
                    f"Cannot listen on {target}: it is taken, or not an address of this machine. Nothing was started. "
                    "Choose another with --listen, or stop what uses it."
                ) from None
        await self._server.start()
        self._group_commit.start()
        if self._orphans is not None:
            self._orphans.start()
        for service in ("", *_SERVICES):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        return ports

    async def failed(self) -> None:
        """Return once the store has failed; see ``engine.failure``."""
        await self._failed.wait()

    async def stop(self, grace: float = _GRACE_S) -> None:
        """Accept no more calls, let running ones finish, end the streams. Each decision is made completely or not at
        all."""
        await self._health.enter_graceful_shutdown()
        if self._orphans is not None:
            await self._orphans.stop()
        self._watchers.stop()
        await self._server.stop(grace)
        await self._group_commit.stop()
        with contextlib.suppress(StoreError):  # the history may miss some entries
            self.engine.tidy()

    def _make_server(self, wall: Callable[[], datetime]) -> grpc.aio.Server:
        server = grpc.aio.server(
            options=[
                # a second coordinator on the same port must fail, not share it
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                # or one connection could take all calls of the server
                ("grpc.max_concurrent_streams", MAX_STREAMS),
                # how much a peer may send before it is read: fixed, because a fast peer would be allowed megabytes
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", _UNREAD_BYTES),
                ("grpc.max_send_message_length", MAX_RESPONSE_BYTES),
                *self._options.keep_alive.server_arguments(),
                *(self._options.tls.arguments() if self._options.tls is not None else ()),
            ],
        )
        summaries = JobSummaries(self.engine, self._reports, self._orphans, wall=wall)
        guard = Guard(self._options.rights, refused=self.engine.refused)
        services = (
            participant_service(self.engine, self._watchers, self._group_commit.handle, self._reports, guard),
            operator_service(self.engine, self._watchers, self._group_commit, summaries, guard),
        )
        intake, calls = Intake(), CallsDoor(guard, self._options.max_concurrent_rpcs, MAX_CALLS_OF_PEER)
        server.add_generic_rpc_handlers(tuple(behind(calls, intake.bounded(service)) for service in services))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, Entrance(server, HealthDoor()))
        if self._options.reflection:
            names = (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
            servicer = reflection.aio.ReflectionServicer(names)
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, Entrance(server, calls))
        return server

    def _changed(self, job: JobName) -> None:
        self._watchers.wake(job)
        if self._orphans is not None:
            self._orphans.changed(job)
        self._group_commit.hurry()
