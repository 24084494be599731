"""The gRPC server around the engine, on one event loop."""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc  # type: ignore[import-untyped]

from onceward.common.errors import ConfigurationError
from onceward.coordinator.service.certificates import expiry_of
from onceward.coordinator.service.coordinator import Coordinator
from onceward.coordinator.service.describing import coordinator_service, own_version
from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.service.doors import CallsDoor, Connections, Entrance, HealthDoor, behind
from onceward.coordinator.service.engine import Engine
from onceward.coordinator.service.intake import Intake
from onceward.coordinator.service.leading import Gate
from onceward.coordinator.service.observer import Observer
from onceward.coordinator.service.peers import Guard
from onceward.coordinator.service.rejections import counted
from onceward.coordinator.service.rights_file import RightsFile
from onceward.coordinator.service.systems import Systems
from onceward.coordinator.service.tls import ServerTls
from onceward.coordinator.store.database import StoreKind
from onceward.coordinator.store.store import Store
from onceward.protocol.answers import Note
from onceward.protocol.values import JobName
from onceward.wire.channel import KeepAlive
from onceward.wire.lead import LIVE, READY
from onceward.wire.limits import (
    MAX_CALLS_OF_PEER,
    MAX_CONCURRENT_RPCS,
    MAX_MESSAGE_BYTES,
    MAX_RESPONSE_BYTES,
    MAX_STREAMS,
)
from onceward.wire.rows import Certificate, CoordinatorDescription, CoordinatorRole, Leader, Setting
from onceward.wire.v1 import operators_pb2, participants_pb2

__all__ = ["CoordinatorServer", "ServerOptions"]

_DESCRIPTORS = [
    service for file in (participants_pb2, operators_pb2) for service in file.DESCRIPTOR.services_by_name.values()
]
_SERVICES = tuple(service.full_name for service in _DESCRIPTORS)
_METHODS = [f"/{service.full_name}/{method.name}" for service in _DESCRIPTORS for method in service.methods]
_GRACE_S = 1.0
_SOON_S = 0.02
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
    systems: Systems | None = None
    """Used to settle jobs without a driver. None inside a driver, which does that itself."""
    observer: Observer | None = None
    """What measures the coordinator. It outlives each term, and serves the next one."""
    store_kind: StoreKind = StoreKind.SQLITE
    """Of the store for which it stands by."""
    temporary: bool = False
    """Only for a command that found no other process at the store."""
    settings: tuple[Setting, ...] = ()
    """The options of the process, for people: without secrets."""


def _wall() -> datetime:
    return datetime.now(UTC)


class CoordinatorServer:
    """The coordinator's server. Create, start and stop it inside one running event loop.

    It leads on a store, or stands by for one: then it refuses all calls except those about its health and itself.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        options: ServerOptions | None = None,
        checkers: Checkers | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = _wall,
    ) -> None:
        """Raises StoreError when the store cannot be read, ConfigurationError for a broken plug-in."""
        self._options = options or ServerOptions()
        self._checkers = checkers if checkers is not None else Checkers.installed()
        self._clock, self._wall = clock, wall
        self._guard = Guard(self._options.rights, refused=self._refused)
        self._gate = Gate(_METHODS)
        self._leader: Leader | None = None
        self._calls = CallsDoor(self._guard, self._options.max_concurrent_rpcs, MAX_CALLS_OF_PEER)
        self._connections = Connections()
        self._reached_by_tcp = False
        self._health = health.aio.HealthServicer()
        self._server = self._make_server()
        self._doubts: asyncio.Task[None] | None = None
        self.coordinator = None if store is None else self._coordinator_of(store)
        """The one that leads."""

    @property
    def engine(self) -> Engine:
        assert self.coordinator is not None, "it stands by"
        return self.coordinator.engine

    def find(self, call: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Return what handles a call from this process, which passes no door."""
        return self._counted(self._gate).service(call)

    async def start(self, *targets: str) -> list[int]:
        """Listen on gRPC targets such as ``127.0.0.1:7878`` or ``unix:/path``. Returns their ports (1 for a socket).

        Raises ConfigurationError when one cannot be bound, or a certificate cannot be used.
        """
        credentials = None if self._options.tls is None else self._options.tls.credentials()
        self._reached_by_tcp = not all(target.startswith("unix:") for target in targets)
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
        await self._serving(False)
        await self._server.start()
        await self._health.set(LIVE, health_pb2.HealthCheckResponse.SERVING)
        if self.coordinator is not None:
            await self._lead(self.coordinator)
        return ports

    async def lead(self, store: Store) -> None:
        """Serve the jobs of the store. Raises StoreError when it cannot be read."""
        self._gate.close("this coordinator reads its store, and then leads")
        # in a thread, so that health checks are answered meanwhile
        self.coordinator = await asyncio.to_thread(self._coordinator_of, store)
        await self._lead(self.coordinator)

    async def stand_by(self, reason: str, leader: Leader | None = None) -> None:
        """Refuse calls with the reason, and stop serving jobs. The store can be closed afterwards.

        :param leader: the coordinator that leads, if known.
        """
        self._leader = leader
        self._gate.close(reason, "" if leader is None else leader.address)
        if self._doubts is not None:
            self._doubts.cancel()
            self._doubts = None
        if self.coordinator is not None:
            await self._serving(False)
            coordinator, self.coordinator = self.coordinator, None
            await coordinator.stop()

    async def ready(self, ready: bool) -> None:
        """Say whether this server leads or could lead."""
        await self._health.set(READY, _status(ready))

    async def failed(self) -> None:
        """Return once the store has failed, or another coordinator leads; see ``engine.failure``."""
        if self.coordinator is not None:
            await self.coordinator.failed()

    async def stop(self, grace: float = _GRACE_S) -> None:
        """Accept no more calls, finish what has arrived, end the streams."""
        await self._health.enter_graceful_shutdown()
        await self.stand_by("the coordinator stops")
        await self._server.stop(grace)

    async def _describe(self) -> CoordinatorDescription:
        """Raises StoreError."""
        options = self._options
        files = {} if options.tls is None else options.tls.certificates
        itself = CoordinatorDescription(
            role=CoordinatorRole.STANDS_BY,
            detail=self._gate.reason,
            leader=self._leader,
            standbys=None,
            store=options.store_kind.value,
            shared=options.store_kind.shared,
            store_id="",
            commits=None,
            calls=self._calls.count,
            most_calls=self._calls.most,
            connections=self._connections.count if self._reached_by_tcp else None,
            drivers=None,
            jobs=None,
            certificates=tuple(
                [
                    Certificate(option=option, expires_at=await asyncio.to_thread(expiry_of, file))
                    for option, file in files.items()
                ]
            ),
            settings=options.settings,
            version=own_version(),
        )
        return itself if self.coordinator is None else await self.coordinator.describe(itself)

    def _coordinator_of(self, store: Store) -> Coordinator:
        return Coordinator(
            store,
            systems=self._options.systems,
            checkers=self._checkers,
            clock=self._clock,
            wall=self._wall,
            guard=self._guard,
            observer=self._options.observer,
            temporary=self._options.temporary,
        )

    def _refused(self, job: JobName, note: Note) -> bool:
        """Show a refusal in the history of a job, if this coordinator leads and knows it."""
        return self.coordinator is not None and self.coordinator.engine.refused(job, note)

    async def _lead(self, coordinator: Coordinator) -> None:
        coordinator.start()
        self._gate.open(coordinator)
        await self.ready(True)
        await self._serving(True)
        self._doubts = asyncio.create_task(self._show_doubts(coordinator.store))

    async def _show_doubts(self, store: Store) -> None:
        """Serve, as far as clients see, only while no other coordinator can lead."""
        served = True
        while math.isfinite(left := store.leads_for):
            if (left > 0) is not served:
                served = left > 0
                await self._serving(served)
            await asyncio.sleep(max(left, _SOON_S))

    async def _serving(self, serving: bool) -> None:
        for service in ("", *_SERVICES):
            await self._health.set(service, _status(serving))

    def _counted(self, handler: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        observer = self._options.observer
        return handler if observer is None else counted(handler, observer.rejected)

    def _make_server(self) -> grpc.aio.Server:
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
        intake = Intake()
        # what a process says of itself needs no lead
        for handler in (coordinator_service(self._describe, self._guard), self._gate):
            handler = behind(self._calls, intake.bounded(handler), self._connections)
            server.add_generic_rpc_handlers((self._counted(handler),))
        checks = HealthDoor(self._guard, MAX_CALLS_OF_PEER)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, Entrance(server, checks, self._connections))
        if self._options.reflection:
            names = (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
            servicer = reflection.aio.ReflectionServicer(names)
            reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
                servicer, Entrance(server, self._calls, self._connections)
            )
        return server


def _status(serving: bool) -> int:
    status = health_pb2.HealthCheckResponse
    return int(status.SERVING if serving else status.NOT_SERVING)
