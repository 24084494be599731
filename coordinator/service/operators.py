"""The operators' service: listings and requests."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import grpc

from onceward.common.printable import log_fields, logger
from onceward.coordinator.service.engine import Engine, UnknownJobError
from onceward.coordinator.service.group_commit import GroupCommit
from onceward.coordinator.service.job_summaries import JobSummaries
from onceward.coordinator.service.methods import Function, service_handler
from onceward.coordinator.service.peers import OPEN, Guard
from onceward.coordinator.service.shares import Shares
from onceward.coordinator.service.skipping import Where, skip_of
from onceward.coordinator.service.watchers import Watchers
from onceward.coordinator.store.errors import NoSuchCheckpointError
from onceward.coordinator.store.listing import Listings
from onceward.coordinator.store.reading import LastCompleted
from onceward.coordinator.store.store import Store
from onceward.protocol.answers import Answer, Verdict
from onceward.protocol.core import step
from onceward.protocol.events import Event, RequestRestore, SkipInput
from onceward.protocol.status import JobStatus
from onceward.protocol.values import CheckpointId, CheckpointKind, CompletedCheckpoint, JobName, RequestId
from onceward.protocol.waits import unsettled_slots
from onceward.wire import requests
from onceward.wire.answers import ANSWER
from onceward.wire.limits import MAX_LISTED, MAX_SAVEPOINTS
from onceward.wire.listings import (
    CHECKPOINT_DESCRIPTION,
    CHECKPOINT_SUMMARY,
    GENERATION_SUMMARY,
    HISTORY_ENTRY,
    JOB_DESCRIPTION,
    JOB_SUMMARY,
    LOSS_REPORT,
)
from onceward.wire.malformed import (
    as_base,
    as_checkpoint,
    as_count,
    as_job,
    as_participant,
    as_reason,
    as_text,
    as_token,
)
from onceward.wire.rows import JobDescription
from onceward.wire.v1 import operators_pb2 as pb
from onceward.wire.v1 import participants_pb2
from onceward.wire.values import REQUEST

__all__ = ["operator_service"]

T = TypeVar("T")

_log = logger("onceward.coordinator")


def operator_service(
    engine: Engine, watchers: Watchers, group_commit: GroupCommit, summaries: JobSummaries, guard: Guard = OPEN
) -> grpc.GenericRpcHandler:
    """Everything that an operator's tool can call. ``guard`` holds peers to their rights."""
    reads = _Reads(group_commit, guard)
    listings = _Listings(engine, reads, watchers, summaries, guard)
    operator_requests = _Requests(engine, group_commit, reads)
    functions: dict[str, Function] = {
        "list_jobs": listings.list_jobs,
        "describe_job": listings.describe_job,
        "list_checkpoints": listings.list_checkpoints,
        "describe_checkpoint": listings.describe_checkpoint,
        "list_generations": listings.list_generations,
        "list_history": listings.list_history,
        "describe_request": listings.describe_request,
        "list_losses": listings.list_losses,
        "trigger_checkpoint": operator_requests.trigger_checkpoint,
        "stop_job": operator_requests.stop_job,
        "cancel_job": operator_requests.cancel_job,
        "restore_job": operator_requests.restore_job,
        "permit_takeover": operator_requests.permit_takeover,
        "permit_adoption": operator_requests.permit_adoption,
        "delete_savepoint": operator_requests.delete_savepoint,
        "acknowledge_loss": operator_requests.acknowledge_loss,
        "close_output": operator_requests.close_output,
        "forget_job": operator_requests.forget_job,
        "resolve_slots": operator_requests.resolve_slots,
        "skip_input": operator_requests.skip_input,
    }
    return service_handler(pb.DESCRIPTOR.services_by_name["OperatorService"], functions, {}, guard)


class _Reads:
    """The reads of the store, few of each peer at a time."""

    def __init__(self, group_commit: GroupCommit, guard: Guard) -> None:
        self._group_commit = group_commit
        self._shares = Shares(guard)

    async def read(self, query: Callable[[Store], T]) -> T:
        """See ``GroupCommit.read``."""
        async with self._shares.one():
            return await self._group_commit.read(query, lambda found: found)

    async def read_beside(self, query: Callable[[Listings], T]) -> T:
        """See ``GroupCommit.read_beside``. What makes a long answer belongs into the query, which runs in a thread."""
        async with self._shares.one():
            return await self._group_commit.read_beside(query)


class _Listings:
    """The listings; they change nothing."""

    def __init__(
        self, engine: Engine, reads: _Reads, watchers: Watchers, summaries: JobSummaries, guard: Guard
    ) -> None:
        self._engine = engine
        self._reads = reads
        self._may_view = guard.may_view
        self._watchers = watchers
        self._summaries = summaries
        self._unreadable: set[JobName] = set()
        """Jobs whose row was not whole in the last listing: logged once."""

    async def list_jobs(self, request: pb.ListJobsRequest) -> pb.ListJobsResponse:
        limit = requests.limit(request.limit, otherwise=MAX_LISTED)
        shown = sorted(job for job in self._visible() if job > request.after)
        found = await self._reads.read_beside(lambda store: store.last_completed_by_job())
        await asyncio.to_thread(self._summaries.look, [self._engine.state(job) for job in shown[:limit]])
        rows = (self._row(job, found.get(job, LastCompleted())) for job in shown[:limit])
        return pb.ListJobsResponse(jobs=rows, store_id=self._engine.store_id, more=len(shown) > limit)

    def _row(self, job: JobName, last: LastCompleted) -> pb.JobSummary:
        """The row of a job. What cannot be shown of one job must not hide the others."""
        try:
            row = JOB_SUMMARY.to_wire(self._summaries.of(job, last))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other jobs are shown
            stored = self._summaries.stored(job, last)
            why = f"unreadable: the coordinator cannot show the rest of this row ({error!r}), see its log"
            row = JOB_SUMMARY.to_wire(
                replace(stored, status_detail="; ".join(filter(None, (stored.status_detail, why))))
            )
            if job not in self._unreadable:
                self._unreadable.add(job)
                _log.exception("%s", log_fields({"event": "row_unreadable", "job": job}))
        else:
            self._unreadable.discard(job)
        return row

    async def describe_job(self, request: pb.DescribeJobRequest) -> pb.DescribeJobResponse:
        job = self._known(request.job)
        found = await self._reads.read_beside(lambda store: store.last_completed(job))
        await asyncio.to_thread(self._summaries.look, [self._engine.state(job)])
        state, reading = self._engine.state(job), self._summaries.reading(job)
        durable = state.durable
        return JOB_DESCRIPTION.to_wire(
            JobDescription(
                summary=self._summaries.of(job, found),
                participants=tuple(durable.participants),
                settings=durable.settings,
                connected=self._watchers.connected(job),
                unresolved=durable.unresolved,
                driven=durable.driven or durable.awaits_driver,
                partitions=tuple(reading.partitions) if reading is not None else (),
                other_partitions=reading.other_partitions if reading is not None else 0,
                unsettled=unsettled_slots(state),
            )
        )

    async def list_checkpoints(self, request: pb.ListCheckpointsRequest) -> pb.ListCheckpointsResponse:
        limit, job = requests.limit(request.limit), self._known(request.job)
        kept_by = as_participant(request.kept_by) if request.kept_by else None
        return await self._reads.read_beside(
            lambda store: pb.ListCheckpointsResponse(
                checkpoints=map(CHECKPOINT_SUMMARY.to_wire, store.checkpoints(job, limit, kept_by))
            )
        )

    async def describe_checkpoint(self, request: pb.DescribeCheckpointRequest) -> pb.DescribeCheckpointResponse:
        job, checkpoint = self._known(request.job), as_checkpoint(request.checkpoint)

        def shown(store: Listings) -> pb.DescribeCheckpointResponse | None:
            found = store.checkpoint(job, checkpoint)
            return CHECKPOINT_DESCRIPTION.to_wire(found) if found is not None else None

        answer = await self._reads.read_beside(shown)
        if answer is None:
            raise UnknownJobError(f"job {job} has no stored checkpoint {checkpoint}")
        return answer

    async def list_generations(self, request: pb.ListGenerationsRequest) -> pb.ListGenerationsResponse:
        limit, job = requests.limit(request.limit), self._known(request.job)
        return await self._reads.read_beside(
            lambda store: pb.ListGenerationsResponse(
                generations=map(GENERATION_SUMMARY.to_wire, store.generations(job, limit))
            )
        )

    async def list_history(self, request: pb.ListHistoryRequest) -> pb.ListHistoryResponse:
        limit, job = requests.limit(request.limit), self._known(request.job)
        if (write := self._engine.take_refused(job)) is not None:
            await self._reads.read(write)
        return await self._reads.read_beside(
            lambda store: pb.ListHistoryResponse(entries=map(HISTORY_ENTRY.to_wire, store.history(job, limit)))
        )

    async def list_losses(self, request: pb.ListLossesRequest) -> pb.ListLossesResponse:
        limit, of = requests.limit(request.limit), None
        if request.job:
            of = [self._known(request.job)]
        elif self._may_view() is not None:
            of = [job for job in self._visible() if self._engine.state(job).durable.status is not JobStatus.FORGOTTEN]
        return await self._reads.read_beside(
            lambda store: pb.ListLossesResponse(
                losses=map(LOSS_REPORT.to_wire, store.losses(of, limit, acknowledged=request.acknowledged))
            )
        )

    async def describe_request(self, request: pb.DescribeRequestRequest) -> pb.DescribeRequestResponse:
        job, token = self._known(request.job), as_token(request.request, "request")
        for known in self._engine.state(job).durable.requests:
            if known.id == token:
                return pb.DescribeRequestResponse(request=REQUEST.to_wire(known))
        raise UnknownJobError(f"job {job} remembers no request {token}; only its last ones are kept")

    def _visible(self) -> Iterator[JobName]:
        """The jobs that the calling peer may view."""
        may_view = self._may_view()
        return (job for job in self._engine.jobs() if may_view is None or may_view(job))

    def _known(self, job: str) -> JobName:
        name = as_job(job)
        self._engine.state(name)
        return name


class _Requests:
    """The requests; each is an event for the core."""

    def __init__(self, engine: Engine, group_commit: GroupCommit, reads: _Reads) -> None:
        self._engine = engine
        self._group_commit = group_commit
        self._reads = reads

    async def acknowledge_loss(self, request: pb.AcknowledgeLossRequest) -> pb.AcknowledgeLossResponse:
        event = requests.acknowledge_loss(request, self._engine.clock())
        return pb.AcknowledgeLossResponse(answer=await self._handle(request.job, event))

    async def close_output(self, request: pb.CloseOutputRequest) -> pb.CloseOutputResponse:
        answer = await self._handle(request.job, requests.close_output(request, self._engine.clock()))
        return pb.CloseOutputResponse(answer=answer)

    async def forget_job(self, request: pb.ForgetJobRequest) -> pb.ForgetJobResponse:
        event = requests.forget_job(request, self._engine.clock())
        return pb.ForgetJobResponse(answer=await self._handle(request.job, event))

    async def trigger_checkpoint(self, request: pb.TriggerCheckpointRequest) -> pb.TriggerCheckpointResponse:
        job, event = as_job(request.job), requests.request_checkpoint(request, self._engine.clock())
        if event.kind is CheckpointKind.SAVEPOINT and (refusal := await self._full(job, event.request)):
            return pb.TriggerCheckpointResponse(answer=_refused(refusal))
        answer = await self._group_commit.handle(job, event)
        known = REQUEST.to_wire(answer.request) if answer.request is not None else None
        return pb.TriggerCheckpointResponse(answer=ANSWER.to_wire(answer), request=known)

    async def _full(self, job: JobName, request: RequestId) -> str:
        """Why the job may have no further savepoint; empty if it may, or if the request is a repeated one."""
        durable = self._engine.state(job).durable
        if any(known.id == request for known in durable.requests):
            return ""
        kept = await self._reads.read(lambda store: store.savepoints(job))
        coming = sum(one.kind is CheckpointKind.SAVEPOINT for one in self._engine.state(job).durable.open_requests)
        if kept + coming < MAX_SAVEPOINTS:
            return ""
        return (
            f"job {job} has {kept} savepoints and {coming} that are not completed yet, at most {MAX_SAVEPOINTS} are "
            f"kept: delete one first (onceward savepoint {job} --delete ID)"
        )

    async def stop_job(self, request: pb.StopJobRequest) -> pb.StopJobResponse:
        answer = await self._handle(request.job, requests.stop_job(request, self._engine.clock()))
        return pb.StopJobResponse(answer=answer)

    async def cancel_job(self, request: pb.CancelJobRequest) -> pb.CancelJobResponse:
        answer = await self._handle(request.job, requests.cancel_job(request, self._engine.clock()))
        return pb.CancelJobResponse(answer=answer)

    async def restore_job(self, request: pb.RestoreJobRequest) -> pb.RestoreJobResponse:
        job, checkpoint = as_job(request.job), as_checkpoint(request.checkpoint)
        reason = as_reason(request.reason)
        self._engine.state(job)
        source = await self._completed(job, checkpoint)
        if isinstance(source, str):
            return pb.RestoreJobResponse(answer=_refused(source))
        event = RequestRestore(now=self._engine.clock(), source=source, reason=reason)
        return pb.RestoreJobResponse(answer=await self._handle(job, event))

    async def permit_takeover(self, request: pb.PermitTakeoverRequest) -> pb.PermitTakeoverResponse:
        answer = await self._handle(request.job, requests.permit_takeover(request, self._engine.clock()))
        return pb.PermitTakeoverResponse(answer=answer)

    async def permit_adoption(self, request: pb.PermitAdoptionRequest) -> pb.PermitAdoptionResponse:
        answer = await self._handle(request.job, requests.permit_adoption(request, self._engine.clock()))
        return pb.PermitAdoptionResponse(answer=answer)

    async def delete_savepoint(self, request: pb.DeleteSavepointRequest) -> pb.DeleteSavepointResponse:
        job, event = as_job(request.job), requests.delete_savepoint(request, self._engine.clock())
        self._engine.state(job)
        stored = await self._reads.read(lambda store: store.checkpoint(job, event.checkpoint))
        if stored is None or stored.summary.kind is not CheckpointKind.SAVEPOINT:
            what = "is not stored" if stored is None else "is no savepoint"
            return pb.DeleteSavepointResponse(answer=_refused(f"checkpoint {event.checkpoint} of job {job} {what}"))
        return pb.DeleteSavepointResponse(answer=await self._handle(job, event))

    async def resolve_slots(self, request: pb.ResolveSlotsRequest) -> pb.ResolveSlotsResponse:
        answer = await self._handle(request.job, requests.resolve_slots(request, self._engine.clock()))
        return pb.ResolveSlotsResponse(answer=answer)

    async def skip_input(self, request: pb.SkipInputRequest) -> pb.SkipInputResponse:
        job, base, reason = as_job(request.job), as_base(request.base), as_reason(request.reason)
        where = Where(
            topic=as_text(request.topic, "topic"),
            partition=as_count(request.partition, "partition"),
            offset=as_count(request.offset, "offset"),
        )
        source = await self._positions(job, base)
        # in a thread: positions may have megabytes
        skip = await asyncio.to_thread(skip_of, source, where) if not isinstance(source, str) else source
        if isinstance(skip, str):
            return pb.SkipInputResponse(answer=_refused(skip))
        event = SkipInput(
            now=self._engine.clock(),
            base=skip.base,
            participant=skip.participant,
            positions=skip.positions,
            skipped=skip.skipped,
            reason=reason,
        )
        if request.only_look:
            _, ready = step(self._engine.state(job), event)
            return pb.SkipInputResponse(answer=ANSWER.to_wire(ready.answer), base=skip.base, skipped=skip.skipped)
        return pb.SkipInputResponse(answer=await self._handle(job, event), base=skip.base, skipped=skip.skipped)

    async def _positions(self, job: JobName, base: CheckpointId) -> CompletedCheckpoint | str:
        """The checkpoint ``base`` that the person inspected (0: the newest), or why there is none. Naming it makes a
        repeated call recognisable."""
        durable = self._engine.state(job).durable
        if base:
            return await self._completed(job, base)
        none = durable.unreadable or f"job {job} has no completed checkpoint, so no positions to move"
        return durable.completed if durable.completed is not None else none

    async def _completed(self, job: JobName, checkpoint: CheckpointId) -> CompletedCheckpoint | str:
        """The completed checkpoint, or why it cannot be used."""
        try:
            return await self._reads.read(lambda store: store.completed(job, checkpoint))
        except NoSuchCheckpointError as error:
            return str(error)

    async def _handle(self, job: str, event: Event) -> participants_pb2.Answer:
        return ANSWER.to_wire(await self._group_commit.handle(as_job(job), event))


def _refused(detail: str) -> participants_pb2.Answer:
    return ANSWER.to_wire(Answer(verdict=Verdict.REFUSED, detail=detail))
