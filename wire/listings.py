"""The rows of listings as messages. Decoding raises MalformedError."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

import onceward.wire.values  # noqa: F401 - says how to carry the values in the rows
from onceward.protocol.values import Outcome, ParticipantName
from onceward.wire import rows
from onceward.wire.codec import By, Codec, carry
from onceward.wire.enums import OUTCOME
from onceward.wire.malformed import as_participant
from onceward.wire.v1 import operators_pb2 as pb

__all__ = [
    "CHECKPOINT_DESCRIPTION",
    "CHECKPOINT_SUMMARY",
    "COORDINATOR_DESCRIPTION",
    "GENERATION_SUMMARY",
    "HISTORY_ENTRY",
    "JOB_DESCRIPTION",
    "JOB_SUMMARY",
    "LOSS_REPORT",
]

_MICROSECOND = timedelta(microseconds=1)


def _unresolved_to_wire(value: Mapping[ParticipantName, Mapping[int, Outcome]]) -> list[pb.UnresolvedSlot]:
    return [
        pb.UnresolvedSlot(participant=name, slot=slot, outcome=OUTCOME.to_wire(outcome))  # type: ignore[arg-type]
        for name, slots in sorted(value.items())
        for slot, outcome in sorted(slots.items())
    ]


def _unresolved_from_wire(slots: Iterable[pb.UnresolvedSlot]) -> dict[ParticipantName, dict[int, Outcome]]:
    found: dict[ParticipantName, dict[int, Outcome]] = {}
    for one in slots:
        found.setdefault(as_participant(one.participant), {})[one.slot] = OUTCOME.from_wire(one.outcome)
    return found


def _commits_to_wire(value: rows.CommitTimes) -> pb.CommitTimes:
    median, p99, worst = ((one or timedelta()) // _MICROSECOND for one in (value.median, value.p99, value.worst))
    return pb.CommitTimes(
        commits=value.commits,
        median_us=median,
        p99_us=p99,
        worst_us=worst,
        window_us=value.window // _MICROSECOND,
    )


def _commits_from_wire(message: pb.CommitTimes) -> rows.CommitTimes:
    times = (message.median_us, message.p99_us, message.worst_us)
    median, p99, worst = (one * _MICROSECOND if message.commits else None for one in times)
    return rows.CommitTimes(
        commits=message.commits, median=median, p99=p99, worst=worst, window=message.window_us * _MICROSECOND
    )


carry(rows.CommitTimes, _commits_to_wire, _commits_from_wire)
_WAIT: Final = Codec(rows.JobWait, pb.Wait, checks=False)
_PROGRESS: Final = Codec(rows.JobProgress, pb.JobProgress, checks=False)
JOB_SUMMARY: Final = Codec(rows.JobSummary, pb.JobSummary, checks=False)
JOB_DESCRIPTION: Final = Codec(
    rows.JobDescription,
    pb.DescribeJobResponse,
    checks=False,
    unresolved=By(to_wire=_unresolved_to_wire, from_wire=_unresolved_from_wire),
)
CHECKPOINT_SUMMARY: Final = Codec(rows.CheckpointSummary, pb.CheckpointSummary, checks=False)
_RECORDED: Final = Codec(rows.RecordedSettlement, pb.RecordedSettlement, checks=False)
CHECKPOINT_DESCRIPTION: Final = Codec(rows.CheckpointDescription, pb.DescribeCheckpointResponse, checks=False)
LOSS_REPORT: Final = Codec(rows.LossReport, pb.LossReport, checks=False)
GENERATION_SUMMARY: Final = Codec(rows.GenerationSummary, pb.GenerationSummary, checks=False)
HISTORY_ENTRY: Final = Codec(rows.HistoryEntry, pb.HistoryEntry, checks=False)
_LEADER: Final = Codec(rows.Leader, pb.Leader, checks=False)
_STANDBY: Final = Codec(rows.Standby, pb.Standby, checks=False)
_CERTIFICATE: Final = Codec(rows.Certificate, pb.Certificate, checks=False)
_SETTING: Final = Codec(rows.Setting, pb.Setting, checks=False)
COORDINATOR_DESCRIPTION: Final = Codec(
    rows.CoordinatorDescription,
    pb.DescribeCoordinatorResponse,
    checks=False,
    standbys=By(
        to_wire=lambda standbys: pb.Standbys(standbys=map(_STANDBY.to_wire, standbys)),
        from_wire=lambda message: tuple(map(_STANDBY.from_wire, message.standbys)),
    ),
)
