"""Simulated drivers: one connection, one stream and one lease each, as a job has; hundreds of them in one process."""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import Message

from benchmarks.coordinator.documents import SOURCE, members, read, settings, settlements, written
from onceward.client.calls import call_backoff
from onceward.protocol.answers import Complete, Trigger
from onceward.protocol.settings import CheckpointSettings, Duration
from onceward.protocol.values import NO_CHECKPOINT, CheckpointId, JobName, ParticipantName, Role, Snapshot
from onceward.wire.answers import instruction_from_wire
from onceward.wire.channel import KeepAlive
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.v1.participants_pb2_grpc import ParticipantServiceStub
from onceward.wire.values import PARTICIPANT, SETTLEMENT, settings_to_wire, snapshot_to_wire

__all__ = ["DriverFailedError", "Measurements", "SimulatedDriver", "all_watch"]

T = TypeVar("T")

_CALL_LIMIT_S = 5.0
_RUN_S = (0.05, 0.25)
"""How long a checkpoint's Spark job takes."""
_COMMIT_S = (0.005, 0.02)
"""How long its transactions take to end."""

if TYPE_CHECKING:
    from onceward.wire.v1.participants_pb2_grpc import ParticipantServiceAsyncStub as Stub


class DriverFailedError(RuntimeError):
    """A simulated driver cannot go on: what was measured says nothing."""


@dataclass(kw_only=True)
class Measurements:
    """Seconds, of all drivers together."""

    decisions: list[float] = field(default_factory=list)
    """From sending the last acknowledgement to the instruction to commit."""
    acknowledgements: list[float] = field(default_factory=list)
    """From sending one to its answer."""
    settlements: list[float] = field(default_factory=list)
    failures: int = 0
    """Calls and streams that broke."""

    def clear(self) -> None:
        self.decisions.clear()
        self.acknowledgements.clear()
        self.settlements.clear()
        self.failures = 0


class SimulatedDriver:
    """Opens its job, then does what the stream says, until cancelled."""

    def __init__(
        self,
        address: str,
        job: JobName,
        interval: Duration | None,
        slots: int,
        measurements: Measurements,
        *,
        sinks: int = 1,
        lease: Duration = "10s",
    ) -> None:
        """``slots``: of each of the sinks."""
        self._address = address
        self._job = job
        self._settings: CheckpointSettings = settings(interval, lease)
        self._slots = slots
        self._members = members(sinks)
        self._sinks = [member.name for member in self._members if member.role is Role.SINK]
        self._measured = measurements
        self._secret = secrets.token_hex(16)
        self._generation = 0
        self._snapshots: dict[CheckpointId, dict[ParticipantName, Snapshot]] = {}
        self._sent: dict[CheckpointId, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.watching = asyncio.Event()
        """The coordinator counts the stream as there."""

    async def run(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 1_000)]
        options += [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.min_reconnect_backoff_ms", 50)]
        channel = grpc.aio.insecure_channel(self._address, options=[*options, *KeepAlive().client_arguments()])
        async with channel:
            stub: Stub = ParticipantServiceStub(channel)
            await self._open(stub)
            renewing = asyncio.create_task(self._renew(stub))
            backoff = call_backoff()
            try:
                while True:
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        await self._watch(stub)
                    if self.watching.is_set():
                        backoff = call_backoff()
                    self.watching.clear()
                    self._measured.failures += 1
                    await asyncio.sleep(backoff.next())
            finally:
                renewing.cancel()
                for task in self._tasks:
                    task.cancel()

    async def _open(self, stub: "Stub") -> None:
        request = pb.OpenJobRequest(
            job=self._job,
            driver=self._secret,
            participants=[PARTICIPANT.to_wire(participant) for participant in self._members],
            settings=settings_to_wire(self._settings),
        )
        response = await self._answered(stub.OpenJob, request)
        if response.answer.verdict not in (pb.VERDICT_ACCEPTED, pb.VERDICT_DUPLICATE):
            raise DriverFailedError(f"job {self._job} was not opened: {response.answer.detail}")
        self._generation = response.grant.generation

    async def _renew(self, stub: "Stub") -> None:
        request = pb.RenewRequest(job=self._job, generation=self._generation, driver=self._secret, progress=_progress())
        pause = self._settings.seconds("lease") / 3
        await asyncio.sleep(random.uniform(0, pause))
        while True:
            request.progress.CopyFrom(_progress())
            await self._answered(stub.Renew, request)
            await asyncio.sleep(pause)

    async def _watch(self, stub: "Stub") -> None:
        call = stub.Watch(pb.WatchRequest(job=self._job, generation=self._generation, driver=self._secret))
        await call.initial_metadata()
        if not call.done():
            self.watching.set()
        async for response in call:
            if response.WhichOneof("content") == "end":
                raise DriverFailedError(f"job {self._job}: {response.end.detail}")
            match instruction_from_wire(response.instruction):
                case Trigger() as trigger:
                    self._begin(self._checkpoint(stub, trigger))
                case Complete() as complete:
                    sent = self._sent.pop(complete.checkpoint, None)
                    if sent is not None:
                        self._measured.decisions.append(time.perf_counter() - sent)
                    self._begin(self._settle(stub, complete))
                case other:
                    raise DriverFailedError(f"job {self._job} is wanted to {other}")

    async def _answered(self, method: Callable[..., Awaitable[T]], request: Message) -> T:
        """Asks until there is an answer, as the client does."""
        backoff = call_backoff()
        while True:
            try:
                return await method(request, timeout=_CALL_LIMIT_S)
            except grpc.aio.AioRpcError:
                self._measured.failures += 1
                await asyncio.sleep(backoff.next())

    def _begin(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _checkpoint(self, stub: "Stub", trigger: Trigger) -> None:
        await asyncio.sleep(random.uniform(*_RUN_S))
        checkpoint = int(trigger.checkpoint)
        slots = self._slots if trigger.base != NO_CHECKPOINT else 0
        written_by = {
            sink: written(self._job, self._generation, checkpoint, slots, sink) if slots else Snapshot()
            for sink in self._sinks
        }
        self._snapshots[trigger.checkpoint] = written_by
        request = pb.AcknowledgeRequest(
            job=self._job,
            generation=self._generation,
            driver=self._secret,
            checkpoint=trigger.checkpoint,
            base=trigger.base,
            acknowledgements=[
                pb.Acknowledgement(participant=name, snapshot=snapshot_to_wire(snapshot))
                for name, snapshot in {SOURCE: read(checkpoint), **written_by}.items()
            ],
        )
        sent = time.perf_counter()
        if slots:
            self._sent[trigger.checkpoint] = sent
        response = await self._answered(stub.Acknowledge, request)
        self._measured.acknowledgements.append(time.perf_counter() - sent)
        refused = [one for one in response.answers if one.verdict not in (pb.VERDICT_ACCEPTED, pb.VERDICT_DUPLICATE)]
        self._measured.failures += len(refused)

    async def _settle(self, stub: "Stub", complete: Complete) -> None:
        await asyncio.sleep(random.uniform(*_COMMIT_S))
        for sink, snapshot in self._snapshots.pop(complete.checkpoint, {}).items():
            request = pb.SettleRequest(
                job=self._job,
                generation=self._generation,
                driver=self._secret,
                checkpoint=complete.checkpoint,
                participant=sink,
                settlements=[SETTLEMENT.to_wire(one) for one in settlements(snapshot)],
            )
            begun = time.perf_counter()
            await self._answered(stub.Settle, request)
            self._measured.settlements.append(time.perf_counter() - begun)


def _progress() -> pb.ReadProgress:
    """What a driver of a job with four partitions reports."""
    lags = [random.randrange(10_000) for _ in range(4)]
    partitions = [
        pb.PartitionLag(partition=f"orders-{number}", position=123_456_789 + lag, lag=lag)
        for number, lag in enumerate(lags)
    ]
    return pb.ReadProgress(lag=sum(lags), records_per_second=random.uniform(0, 50_000), partitions=partitions)


async def all_watch(drivers: Sequence[SimulatedDriver], running: Sequence["asyncio.Task[Any]"]) -> None:
    """Wait until the coordinator counts every stream as there. Raises what ended one of ``running``."""
    watching = asyncio.gather(*(driver.watching.wait() for driver in drivers))
    ended, _ = await asyncio.wait((watching, *running), return_when=asyncio.FIRST_COMPLETED)
    if watching not in ended:
        watching.cancel()
        await ended.pop()
