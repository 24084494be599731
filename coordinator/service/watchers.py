"""The instruction streams: at most one per job, always showing the current instructions."""

import asyncio
from dataclasses import dataclass, field

import grpc

from onceward.coordinator.service.engine import Engine
from onceward.coordinator.service.group_commit import Handle
from onceward.coordinator.service.methods import STORE_FAILED
from onceward.protocol.answers import Answer, Instruction, Verdict
from onceward.protocol.events import StreamLost
from onceward.protocol.values import Generation, JobName
from onceward.wire import requests
from onceward.wire.answers import ANSWER, instruction_to_wire
from onceward.wire.malformed import as_job
from onceward.wire.v1 import participants_pb2 as pb

__all__ = ["Watchers"]


@dataclass(eq=False, kw_only=True)
class _Watcher:
    generation: Generation
    driver: str | None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    replaced: bool = False


class Watchers:
    """Level-triggered: nothing is queued, so a slow driver costs no memory and a new stream misses nothing."""

    def __init__(self) -> None:
        self._watchers: dict[JobName, _Watcher] = {}
        self._stopping = False

    def wake(self, job: JobName) -> None:
        """Wake the job's stream, because its instructions may have changed."""
        watcher = self._watchers.get(job)
        if watcher is not None:
            watcher.changed.set()

    def stop(self) -> None:
        """End all streams; drivers reconnect when the coordinator is back."""
        self._stopping = True
        for watcher in self._watchers.values():
            watcher.changed.set()

    @property
    def count(self) -> int:
        """Of jobs whose drivers are connected."""
        return len(self._watchers)

    def connected(self, job: JobName) -> bool:
        return job in self._watchers

    async def watch(
        self,
        engine: Engine,
        handle: Handle,
        request: pb.WatchRequest,
        context: "grpc.aio.ServicerContext[bytes, bytes]",
    ) -> None:
        """Serve one stream until it breaks, is replaced or fenced, or the coordinator stops."""
        job, event = as_job(request.job), requests.watch(request, engine.clock())
        answered = handle(job, event, 0)
        watcher = _Watcher(generation=event.generation, driver=event.driver)
        # From this event on this is the job's stream. If an older one breaks while this call waits, that is no stream
        # loss.
        if engine.wanted(job, event.generation, event.driver) is not None:
            before = self._watchers.get(job)
            self._watchers[job] = watcher
            if before is not None:
                before.replaced = True
                before.changed.set()
        try:
            answer = await answered
            if answer.verdict is Verdict.FENCED:
                await context.write(_end(answer))
                return
            await context.send_initial_metadata(())
            await self._show(engine, job, watcher, context)
        finally:
            if self._watchers.get(job) is watcher:
                del self._watchers[job]
                if not self._stopping and engine.failure is None:
                    handle(job, StreamLost(now=engine.clock(), generation=watcher.generation), 0)

    async def _show(
        self,
        engine: Engine,
        job: JobName,
        watcher: _Watcher,
        context: "grpc.aio.ServicerContext[bytes, bytes]",
    ) -> None:
        shown: tuple[Instruction, ...] = ()
        while True:
            watcher.changed.clear()
            if engine.failure is not None:
                await context.abort(grpc.StatusCode.UNAVAILABLE, STORE_FAILED)
            if self._stopping:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the coordinator is stopping")
            if watcher.replaced:
                await context.abort(grpc.StatusCode.ABORTED, "a newer stream of this generation replaces this one")
            wanted = engine.wanted(job, watcher.generation, watcher.driver)
            if wanted is None:
                await context.write(_end(engine.fenced_answer(job, watcher.generation)))
                return
            for instruction in wanted:
                if instruction not in shown:
                    response = pb.WatchResponse(instruction=instruction_to_wire(instruction))
                    await context.write(response.SerializeToString())
            shown = wanted
            await watcher.changed.wait()


def _end(answer: Answer) -> bytes:
    return pb.WatchResponse(end=ANSWER.to_wire(answer)).SerializeToString()
