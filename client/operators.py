"""The client for operators' requests to a coordinator. Synchronous."""

import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Self

import grpc

from onceward.client.access import CoordinatorAccess
from onceward.client.calls import Caller, open_channel
from onceward.client.pieces import in_pieces
from onceward.client.tls import CoordinatorTls
from onceward.protocol.answers import Answer
from onceward.protocol.requests import Request, Ruling
from onceward.protocol.settings import Duration, as_duration
from onceward.protocol.values import CheckpointKind, Claim, JobName, ParticipantName, RequestId, Settlement
from onceward.wire.answers import answer_from_wire
from onceward.wire.enums import CHECKPOINT_KIND, RULING
from onceward.wire.limits import MAX_LISTED
from onceward.wire.listings import (
    CHECKPOINT_DESCRIPTION,
    CHECKPOINT_SUMMARY,
    COORDINATOR_DESCRIPTION,
    GENERATION_SUMMARY,
    HISTORY_ENTRY,
    JOB_DESCRIPTION,
    JOB_SUMMARY,
    LOSS_REPORT,
)
from onceward.wire.rows import (
    CheckpointDescription,
    CheckpointSummary,
    CoordinatorDescription,
    GenerationSummary,
    HistoryEntry,
    JobDescription,
    JobSummary,
    LossReport,
)
from onceward.wire.v1 import operators_pb2 as pb
from onceward.wire.v1.operators_pb2_grpc import CoordinatorServiceStub, OperatorServiceStub
from onceward.wire.values import CLAIM, REQUEST, SETTLEMENT

__all__ = ["MAX_LISTED", "InputSkip", "OperatorClient"]


@dataclass(frozen=True, kw_only=True)
class InputSkip:
    """What moving a job past missing input does, or would do."""

    answer: Answer
    base: int
    """The checkpoint whose positions are moved; 0 when refused."""
    skipped: str
    """What is skipped: the partition and its offsets."""


class OperatorClient:
    """An operator's connection. Calls raise CoordinatorLostError, and RefusedError for an unknown job.

    :param patience: how long to retry while the coordinator is unreachable.
    :param tls: for a coordinator with TLS; without it, what the environment names.
    :param token: ``env:NAME`` or ``file:PATH``, likewise.
    """

    def __init__(
        self, address: str, *, patience: Duration = "2s", tls: CoordinatorTls | None = None, token: str | None = None
    ) -> None:
        access = CoordinatorAccess(address=address, tls=tls, token=token).completed()
        self._use(open_channel(address, tls=access.tls, token=access.token), address, patience, access.tls)

    @classmethod
    def over(cls, channel: grpc.Channel, address: str, *, patience: Duration = "2s") -> Self:
        """Return a client that uses this channel, and nothing that the environment names."""
        made = cls.__new__(cls)
        made._use(channel, address, patience, None)
        return made

    def _use(self, channel: grpc.Channel, address: str, patience: Duration, tls: CoordinatorTls | None) -> None:
        seconds = as_duration(patience).total_seconds()
        self._caller = Caller(channel, address, patience_s=seconds, broken=lambda: None, tls=tls)
        self._stub = OperatorServiceStub(in_pieces(channel))
        self._coordinators = CoordinatorServiceStub(in_pieces(channel))

    def jobs(self) -> list[JobSummary]:
        """Return all jobs that the caller may view, by name."""
        found: list[JobSummary] = []
        more = True
        while more:
            request = pb.ListJobsRequest(after=found[-1].job if found else "")
            page, more = self._caller.call(self._stub.ListJobs, request, _jobs, doing="listing jobs")
            found += page
        return found

    def store_id(self) -> str:
        """Return the id of the coordinator's store, as claims name it."""
        return self._caller.call(
            self._stub.ListJobs,
            pb.ListJobsRequest(limit=1),
            lambda r: str(r.store_id),
            doing="asking for the store's id",
        )

    def coordinator(self) -> CoordinatorDescription:
        """Return what the coordinator says of itself. One that stands by answers, too."""
        return self._caller.call(
            self._coordinators.DescribeCoordinator,
            pb.DescribeCoordinatorRequest(),
            COORDINATOR_DESCRIPTION.from_wire,
            doing="asking what the coordinator does",
        )

    def describe(self, job: JobName) -> JobDescription:
        return self._caller.call(
            self._stub.DescribeJob,
            pb.DescribeJobRequest(job=job),
            JOB_DESCRIPTION.from_wire,
            doing=f"describing job {job}",
        )

    def job(self, job: JobName) -> JobSummary:
        return self.describe(job).summary

    def checkpoints(
        self, job: JobName, limit: int = 20, *, kept_by: ParticipantName | None = None
    ) -> list[CheckpointSummary]:
        """Return checkpoints, newest first. ``kept_by``: each with the state of this participant."""
        return self._caller.call(
            self._stub.ListCheckpoints,
            pb.ListCheckpointsRequest(job=job, limit=limit, kept_by=kept_by or ""),
            lambda r: [CHECKPOINT_SUMMARY.from_wire(checkpoint) for checkpoint in r.checkpoints],
            doing=f"listing checkpoints of job {job}",
        )

    def checkpoint(self, job: JobName, checkpoint: int) -> CheckpointDescription:
        """Return everything stored about one checkpoint."""
        return self._caller.call(
            self._stub.DescribeCheckpoint,
            pb.DescribeCheckpointRequest(job=job, checkpoint=checkpoint),
            CHECKPOINT_DESCRIPTION.from_wire,
            doing=f"describing checkpoint {checkpoint} of job {job}",
        )

    def generations(self, job: JobName, limit: int = 20) -> list[GenerationSummary]:
        """Return generations, newest first."""
        return self._caller.call(
            self._stub.ListGenerations,
            pb.ListGenerationsRequest(job=job, limit=limit),
            lambda r: [GENERATION_SUMMARY.from_wire(generation) for generation in r.generations],
            doing=f"listing generations of job {job}",
        )

    def history(self, job: JobName, limit: int = 20) -> list[HistoryEntry]:
        """Return what happened, newest first."""
        return self._caller.call(
            self._stub.ListHistory,
            pb.ListHistoryRequest(job=job, limit=limit),
            lambda r: [HISTORY_ENTRY.from_wire(entry) for entry in r.entries],
            doing=f"listing the history of job {job}",
        )

    def request_checkpoint(
        self, job: JobName, kind: CheckpointKind, *, name: str = "", stop: bool = False, request: str = ""
    ) -> Answer:
        """Request a checkpoint or a savepoint now. An accepted answer names the request, for :meth:`request`.

        :param stop: end the job once it is completed; savepoints only.
        :param request: the token of an earlier call whose outcome is unknown; a new one by default.
        """
        message = pb.TriggerCheckpointRequest(
            job=job,
            request=request or uuid.uuid4().hex,
            kind=CHECKPOINT_KIND.to_wire(kind),  # type: ignore[arg-type]
            name=name,
            stop=stop,
        )
        return self._caller.call(
            self._stub.TriggerCheckpoint, message, _requested, doing=f"asking for a {kind.value} of job {job}"
        )

    def request(self, job: JobName, request: RequestId) -> Request:
        """Return the current state of a request. Raises RefusedError when the coordinator no longer knows it."""
        return self._caller.call(
            self._stub.DescribeRequest,
            pb.DescribeRequestRequest(job=job, request=request),
            lambda r: REQUEST.from_wire(r.request),
            doing=f"asking about a request for job {job}",
        )

    def stop(self, job: JobName) -> Answer:
        """Ask the job's driver to finish and settle the running checkpoint and leave."""
        return self._caller.call(self._stub.StopJob, pb.StopJobRequest(job=job), _answered, doing=f"stopping job {job}")

    def cancel(self, job: JobName) -> Answer:
        """Ask the job's driver to abort the running checkpoint, settle what is decided and leave."""
        return self._caller.call(
            self._stub.CancelJob, pb.CancelJobRequest(job=job), _answered, doing=f"cancelling job {job}"
        )

    def restore(self, job: JobName, checkpoint: int, reason: str) -> Answer:
        """Start the next generation from the positions of an older checkpoint: output after that checkpoint repeats."""
        return self._caller.call(
            self._stub.RestoreJob,
            pb.RestoreJobRequest(job=job, checkpoint=checkpoint, reason=reason),
            _answered,
            doing=f"restoring job {job} to checkpoint {checkpoint}",
        )

    def permit_takeover(self, job: JobName, generation: int, reason: str) -> Answer:
        """Let the next driver replace the live driver of this generation.

        :param reason: who permits it, and why; stored.
        """
        return self._caller.call(
            self._stub.PermitTakeover,
            pb.PermitTakeoverRequest(job=job, generation=generation, reason=reason),
            _answered,
            doing=f"permitting a takeover of job {job}",
        )

    def permit_adoption(self, job: JobName, claim: Claim, reason: str) -> Answer:
        """Let a driver open the job although it finds this claim on the sink's cluster.

        :param reason: who permits it, and why; stored.
        """
        return self._caller.call(
            self._stub.PermitAdoption,
            pb.PermitAdoptionRequest(job=job, claim=CLAIM.to_wire(claim), reason=reason),
            _answered,
            doing=f"permitting job {job} to adopt a claim",
        )

    def delete_savepoint(self, job: JobName, checkpoint: int) -> Answer:
        """Let retention remove a savepoint."""
        return self._caller.call(
            self._stub.DeleteSavepoint,
            pb.DeleteSavepointRequest(job=job, checkpoint=checkpoint),
            _answered,
            doing=f"deleting savepoint {checkpoint} of job {job}",
        )

    def resolve(
        self,
        job: JobName,
        checkpoint: int,
        participant: ParticipantName,
        slots: Collection[int],
        ruling: Ruling,
        reason: str,
        *,
        evidence: Iterable[Settlement] = (),
        forced: bool = False,
    ) -> Answer:
        """Decide about slots of the newest completed checkpoint that are lost or in doubt.

        :param evidence: what is known of the slots now; stored with the decision.
        :param forced: decide even if the evidence says otherwise, or the slots are neither lost nor in doubt.
        """
        message = pb.ResolveSlotsRequest(
            job=job,
            checkpoint=checkpoint,
            participant=participant,
            slots=sorted(slots),
            ruling=RULING.to_wire(ruling),  # type: ignore[arg-type]
            reason=reason,
            evidence=[SETTLEMENT.to_wire(settlement) for settlement in evidence],
            forced=forced,
        )
        return self._caller.call(self._stub.ResolveSlots, message, _answered, doing=f"resolving slots of job {job}")

    def losses(self, job: JobName | None = None, limit: int = 20, *, acknowledged: bool = False) -> list[LossReport]:
        """Return records that were given up, of one job or of all, newest first.

        :param acknowledged: include those that a person has acknowledged.
        """
        return self._caller.call(
            self._stub.ListLosses,
            pb.ListLossesRequest(job=job or "", limit=limit, acknowledged=acknowledged),
            lambda r: [LOSS_REPORT.from_wire(report) for report in r.losses],
            doing="listing losses",
        )

    def acknowledge_loss(
        self, job: JobName, checkpoint: int, participant: ParticipantName, reason: str, *, slots: Collection[int] = ()
    ) -> Answer:
        """Record that a person has acknowledged the loss of records of a checkpoint.

        :param reason: who acknowledges it, and why; stored.
        :param slots: empty for all slots of that checkpoint and sink.
        """
        message = pb.AcknowledgeLossRequest(
            job=job, checkpoint=checkpoint, participant=participant, slots=sorted(slots), reason=reason
        )
        doing = f"acknowledging a loss of job {job}"
        return self._caller.call(self._stub.AcknowledgeLoss, message, _answered, doing=doing)

    def close_output(self, job: JobName, output: ParticipantName, reason: str) -> Answer:
        """Take an output off the list of those that the job no longer has.

        :param reason: who closes it, and why; stored.
        """
        message = pb.CloseOutputRequest(job=job, participant=output, reason=reason)
        doing = f"closing output {output} of job {job}"
        return self._caller.call(self._stub.CloseOutput, message, _answered, doing=doing)

    def forget(self, job: JobName, reason: str) -> Answer:
        """Delete a job.

        :param reason: who deletes it, and why; stored.
        """
        message = pb.ForgetJobRequest(job=job, reason=reason)
        return self._caller.call(self._stub.ForgetJob, message, _answered, doing=f"forgetting job {job}")

    def skip_input(
        self,
        job: JobName,
        topic: str,
        partition: int,
        offset: int,
        reason: str,
        *,
        base: int = 0,
        only_look: bool = False,
    ) -> InputSkip:
        """Continue a job at ``offset`` in one partition, past deleted input.

        :param base: the newest completed checkpoint, as the person saw it; 0 for the current one.
        :param only_look: change nothing, only return what it would do.
        """
        message = pb.SkipInputRequest(
            job=job, base=base, topic=topic, partition=partition, offset=offset, reason=reason, only_look=only_look
        )
        return self._caller.call(
            self._stub.SkipInput,
            message,
            lambda r: InputSkip(answer=answer_from_wire(r.answer), base=r.base, skipped=r.skipped),
            doing=f"moving job {job} past input",
        )

    def close(self) -> None:
        self._caller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answered(
    response: pb.StopJobResponse
    | pb.CancelJobResponse
    | pb.RestoreJobResponse
    | pb.PermitTakeoverResponse
    | pb.PermitAdoptionResponse
    | pb.DeleteSavepointResponse
    | pb.AcknowledgeLossResponse
    | pb.CloseOutputResponse
    | pb.ForgetJobResponse
    | pb.ResolveSlotsResponse,
) -> Answer:
    return answer_from_wire(response.answer)


def _jobs(response: pb.ListJobsResponse) -> tuple[list[JobSummary], bool]:
    return [JOB_SUMMARY.from_wire(job) for job in response.jobs], response.more


def _requested(response: pb.TriggerCheckpointResponse) -> Answer:
    request = REQUEST.from_wire(response.request) if response.HasField("request") else None
    return answer_from_wire(response.answer, request=request)
