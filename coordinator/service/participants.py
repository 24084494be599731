"""The participants' service: translates requests to events, and answers to responses."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import grpc

from onceward.coordinator.service.documents import Vetted
from onceward.coordinator.service.engine import Engine
from onceward.coordinator.service.group_commit import Handle
from onceward.coordinator.service.methods import REQUEST_SIZE, Function, service_handler
from onceward.coordinator.service.peers import OPEN, Guard
from onceward.coordinator.service.reports import Reports, read_report
from onceward.coordinator.service.watchers import Watchers
from onceward.protocol.answers import Answer, Grant, Verdict
from onceward.protocol.events import Acknowledge, Amend, CloseReason, Event, Settle
from onceward.wire import requests
from onceward.wire.answers import ANSWER, GRANT
from onceward.wire.limits import MAX_MESSAGE_BYTES
from onceward.wire.malformed import as_job
from onceward.wire.v1 import participants_pb2 as pb

__all__ = ["participant_service"]


_FEW_SLOTS = 200

Long: TypeAlias = pb.AcknowledgeRequest | pb.SettleRequest | pb.AmendRequest
T = TypeVar("T")
E = TypeVar("E", Acknowledge, Settle, Amend)
R = TypeVar("R", pb.AcknowledgeRequest, pb.SettleRequest, pb.AmendRequest)


def participant_service(
    engine: Engine, watchers: Watchers, handle: Handle, reports: Reports, guard: Guard = OPEN
) -> grpc.GenericRpcHandler:
    """Everything that a driver can call.

    :param handle: passes an event to the engine.
    :param reports: keeps the drivers' reports.
    :param guard: holds peers to their rights.
    """
    coordinator = secrets.token_hex(8)  # the name of this one

    working = ThreadPoolExecutor(max_workers=1, thread_name_prefix="onceward-requests")

    async def read(request: R, to_events: Callable[[R, float], Sequence[E]]) -> list[tuple[E, Vetted | None]]:
        """Decode a request to its events; a long one in a thread, and have its documents checked there, because its
        calls and those of all other jobs share the loop."""
        job, begun = as_job(request.job), engine.clock()
        if REQUEST_SIZE.get() <= MAX_MESSAGE_BYTES:
            return [(event, None) for event in to_events(request, begun)]

        def decoded() -> list[tuple[E, Vetted | None]]:
            return [(event, engine.vet(job, event)) for event in to_events(request, begun)]

        found = await in_thread(decoded)
        now = engine.clock()  # other events have passed meanwhile
        return [(_late(event, now), vetted) for event, vetted in found]

    async def in_thread(work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(working, work)

    async def said(job: str, event: Event, size: int = 0, vetted: Vetted | None = None) -> pb.Answer:
        return ANSWER.to_wire(await handle(as_job(job), event, size, vetted))

    async def refused(request: Long) -> pb.Answer | None:
        """The answer to a long request that is not from the job's driver; None for all others. Decoding it would take
        time from all jobs' calls. Raises UnknownJobError."""
        if REQUEST_SIZE.get() <= MAX_MESSAGE_BYTES:
            return None
        sender = pb.RenewRequest(job=request.job, generation=request.generation, driver=request.driver)
        answer = await handle(as_job(request.job), requests.renew(sender, engine.clock()), 0)
        return ANSWER.to_wire(answer) if answer.verdict is Verdict.FENCED else None

    async def open_job(request: pb.OpenJobRequest) -> pb.OpenJobResponse:
        answer = await handle(as_job(request.job), requests.open_job(request, engine.clock()), 0)
        grant = answer.grant
        if grant is not None and _is_long(grant):
            return await in_thread(lambda: granted(answer, grant))
        return granted(answer, grant)

    def granted(answer: Answer, grant: Grant | None) -> pb.OpenJobResponse:
        return pb.OpenJobResponse(
            answer=ANSWER.to_wire(answer),
            grant=GRANT.to_wire(grant) if grant is not None else None,
            coordinator=coordinator,
        )

    async def acknowledge(request: pb.AcknowledgeRequest) -> pb.AcknowledgeResponse:
        if (refusal := await refused(request)) is not None:
            return pb.AcknowledgeResponse(answers=[refusal] * len(request.acknowledgements))
        job, events = as_job(request.job), await read(request, requests.acknowledge)
        sizes = [one.ByteSize() for one in request.acknowledgements[:-1]]
        sizes.append(REQUEST_SIZE.get() - sum(sizes))  # a driver sends the longest, its sink's, as the last
        # All are passed on before any is awaited, so that one write stores their changes.
        given = [handle(job, event, size, vetted) for (event, vetted), size in zip(events, sizes, strict=True)]
        return pb.AcknowledgeResponse(answers=[ANSWER.to_wire(await answer) for answer in given])

    async def decline(request: pb.DeclineRequest) -> pb.DeclineResponse:
        return pb.DeclineResponse(answer=await said(request.job, requests.decline(request, engine.clock())))

    async def settle(request: pb.SettleRequest) -> pb.SettleResponse:
        if (refusal := await refused(request)) is not None:
            return pb.SettleResponse(answer=refusal)
        ((event, _),) = await read(request, lambda request, now: [requests.settle(request, now)])
        return pb.SettleResponse(answer=await said(request.job, event))

    async def amend(request: pb.AmendRequest) -> pb.AmendResponse:
        if (refusal := await refused(request)) is not None:
            return pb.AmendResponse(answer=refusal)
        ((event, vetted),) = await read(request, lambda request, now: [requests.amend(request, now)])
        return pb.AmendResponse(answer=await said(request.job, event, REQUEST_SIZE.get(), vetted))

    async def renew(request: pb.RenewRequest) -> pb.RenewResponse:
        job, event = as_job(request.job), requests.renew(request, engine.clock())
        report = read_report(request, event.now)
        answer = await handle(job, event, 0)
        if answer.verdict is Verdict.ACCEPTED:
            reports.note(job, report)
        return pb.RenewResponse(answer=ANSWER.to_wire(answer))

    async def close_job(request: pb.CloseJobRequest) -> pb.CloseJobResponse:
        job, event = as_job(request.job), requests.close_job(request, engine.clock())
        answer = await handle(job, event, 0)
        if answer.verdict is Verdict.ACCEPTED and event.reason is not CloseReason.RESTARTING:
            reports.forget(job)
        return pb.CloseJobResponse(answer=ANSWER.to_wire(answer))

    async def watch(request: pb.WatchRequest, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        await watchers.watch(engine, handle, request, context)

    functions: dict[str, Function] = {
        "open_job": open_job,
        "acknowledge": acknowledge,
        "decline": decline,
        "settle": settle,
        "amend": amend,
        "renew": renew,
        "close_job": close_job,
    }
    service = pb.DESCRIPTOR.services_by_name["ParticipantService"]
    return service_handler(service, functions, {"watch": watch}, guard)


def _late(event: E, now: float) -> E:
    """The event at a later time. The time for which its transactions can be committed ran on."""
    changes: dict[str, Any] = {"now": now}
    if isinstance(event, Acknowledge) and event.good_for_s is not None:
        changes["good_for_s"] = max(0.0, event.good_for_s - (now - event.now))
    return replace(event, **changes)


def _is_long(grant: Grant) -> bool:
    """True when encoding it would take time from all jobs' calls."""
    parts = grant.completed.snapshots.values() if grant.completed is not None else ()
    return sum(len(part.committables) for part in parts) > _FEW_SLOTS
