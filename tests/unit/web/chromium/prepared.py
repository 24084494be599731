"""The page over prepared jobs at a fixed time: every status, and the longest things that a page shows."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from unittest.mock import patch

from onceward.client.operators import OperatorClient
from onceward.common.errors import RefusedError
from onceward.connectors.letter_counts import LetterCounts, Place
from onceward.connectors.letters import DEAD_LETTERS
from onceward.coordinator.service.listen import parse_listen
from onceward.protocol.answers import Verdict
from onceward.protocol.committing import Age
from onceward.protocol.facts import AbortReason
from onceward.protocol.phases import Phase, Phases
from onceward.protocol.read_progress import PartitionLag
from onceward.protocol.requests import Ending, Request
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    CheckpointId,
    CheckpointKind,
    CheckpointState,
    Claim,
    Committable,
    Document,
    Generation,
    JobName,
    OnLost,
    Outcome,
    Participant,
    ParticipantName,
    RequestId,
    Role,
    Settlement,
    Snapshot,
)
from onceward.watch.web import reading, rendering
from onceward.watch.web.page import Page
from onceward.wire.rows import (
    Certificate,
    CheckpointDescription,
    CheckpointSummary,
    CommitTimes,
    CoordinatorDescription,
    CoordinatorRole,
    GenerationSummary,
    HistoryEntry,
    JobDescription,
    JobProgress,
    JobSummary,
    JobWait,
    Leader,
    LossReport,
    RecordedSettlement,
    Setting,
    Standby,
)
from tests.unit.web.browser import Site
from tests.unit.web.rows import job

__all__ = [
    "CHECKPOINT",
    "FINISHED",
    "HALTED",
    "LETTERS",
    "NOW",
    "PRIVATE",
    "RESTARTING",
    "RUNNING",
    "PreparedClient",
    "prepared",
]

NOW = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
HALTED, RESTARTING, RUNNING, FINISHED = map(JobName, ("clicks-eu", "payments", "orders-eur", "returns-2025"))
LETTERS = JobName("inventory")
"""The one that has dead letters."""
PRIVATE = JobName("private")
"""Only a visitor with a token may see it."""
CHECKPOINT = CheckpointId(1841)
"""Of the halted job; its slots 3 and 5 are not proved."""
_SINK = ParticipantName("kafka-sink")
_LAKE, _TABLE = ParticipantName("lake"), ParticipantName("table")
_TABLES = (
    Participant(name=_LAKE, role=Role.SINK, kind="iceberg", on_lost=OnLost.REPLAY, place="iceberg table shop.orders"),
    Participant(
        name=_TABLE, role=Role.SINK, kind="postgres", on_lost=OnLost.REPLAY, place="PostgreSQL table public.orders"
    ),
)
_DEAD = Participant(name=DEAD_LETTERS, role=Role.SINK, kind="kafka", place="Kafka topic inventory-dead")
_GONE = Participant(
    name=ParticipantName("audit"),
    role=Role.SINK,
    kind="delta",
    on_lost=OnLost.REPLAY,
    place="delta table s3://company-warehouse/audit",
)
_TOPICS = {HALTED: "clicks-clean"}
_LOST = Settlement(
    slot=3,
    outcome=Outcome.LOST,
    evidence="onceward.clicks-eu.kafka-sink.4.3f9a2c71.3 timed out after 900 s and was aborted by its broker: "
    "1,204 records from clicks-3, offsets 88,120 to 89,323, are not in the topic",
)
_IN_DOUBT = Settlement(
    slot=5,
    outcome=Outcome.IN_DOUBT,
    evidence="no answer to EndTxn from broker 2, and the receipt of onceward.clicks-eu.kafka-sink.4.3f9a2c71.5 expired",
)


class _Now(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "_Now":
        return cls.fromtimestamp(NOW.timestamp(), tz)


class PreparedClient:
    """Answers the calls of `OperatorClient` that read. ``changed``: what is done to every answer."""

    def __init__(self, changed: Callable[[Any], Any] = lambda answer: answer) -> None:
        self._changed = changed

    def jobs(self) -> Sequence[JobSummary]:
        return [self._changed(job) for _, job in sorted(_JOBS.items())]

    def coordinator(self) -> CoordinatorDescription:
        return self._changed(_COORDINATOR)  # type: ignore[no-any-return]

    def describe(self, job: JobName) -> JobDescription:
        if job not in _JOBS:
            refused = RefusedError(f"There is no job {job}.")
            refused.code = "UNAUTHENTICATED" if job == PRIVATE else "NOT_FOUND"
            raise refused
        summary = _JOBS[job]
        slots = {one.slot: one.outcome for one in (_LOST, _IN_DOUBT)}
        described = JobDescription(
            summary=summary,
            participants=(
                Participant(name=ParticipantName("kafka-source"), role=Role.SOURCE, kind="kafka"),
                Participant(name=_SINK, role=Role.SINK, kind="kafka", place=f"Kafka topic {_TOPICS.get(job, job)}"),
                *(_TABLES if job == RUNNING else ()),
                *((_DEAD,) if job == LETTERS else ()),
            ),
            settings=CheckpointSettings(),
            connected=summary.status is JobStatus.RUNNING,
            unresolved={_SINK: slots} if job == HALTED else {},
            unsettled={_SINK: 2} if job == HALTED else {_LAKE: 1} if job == RUNNING else {},
            driven=summary.status in (JobStatus.RUNNING, JobStatus.RESTARTING),
            partitions=() if summary.progress is None else _PARTITIONS,
            other_partitions=0 if summary.progress is None else 42,
        )
        return self._changed(described)  # type: ignore[no-any-return]

    def checkpoints(
        self, job: JobName, limit: int, *, kept_by: ParticipantName | None = None
    ) -> Sequence[CheckpointSummary]:
        found = _checkpoints(_JOBS[job])[:limit]
        kept = _letters(found) if kept_by == DEAD_LETTERS else {}
        return [self._changed(replace(one, kept=kept.get(one.checkpoint))) for one in found]

    def checkpoint(self, job: JobName, checkpoint: int) -> CheckpointDescription:
        found = {one.checkpoint: one for one in _checkpoints(_JOBS[job])}
        if checkpoint not in found:
            raise RefusedError(f"Job {job} has no checkpoint {checkpoint}.")
        settlements = [
            RecordedSettlement(participant=_SINK, settlement=one, recorded_at=_ago(minutes=11))
            for one in (_LOST, _IN_DOUBT)
        ]
        described = CheckpointDescription(
            summary=found[CheckpointId(checkpoint)], snapshots=_snapshots(), settlements=tuple(settlements)
        )
        return self._changed(described)  # type: ignore[no-any-return]

    def losses(self, job: JobName, limit: int) -> Sequence[LossReport]:
        given_up = LossReport(
            job=job,
            checkpoint=CheckpointId(417),
            participant=_SINK,
            settlement=replace(_LOST, slot=2),
            document=Document(kind="kafka-transaction", version=1, body={}),
            reason="Ada: test data",
            recorded_at=_ago(hours=5),
            acknowledged_at=None,
            acknowledgement="",
        )
        return [self._changed(given_up)]

    def generations(self, job: JobName, limit: int) -> Sequence[GenerationSummary]:
        newest, driven = _JOBS[job].generation, _JOBS[job].status in (JobStatus.RUNNING, JobStatus.RESTARTING)
        found = [
            GenerationSummary(
                generation=Generation(number),
                driver="9c1d5e0a",
                granted_at=_ago(hours=6 * (newest - number) + 1),
                ended_at=None if driven and number == newest else _ago(hours=6 * (newest - number), minutes=-5),
                detail="" if number == newest else _ENDS[number % len(_ENDS)],
            )
            for number in range(newest, 0, -1)
        ]
        return [self._changed(one) for one in found[:limit]]

    def history(self, job: JobName, limit: int) -> Sequence[HistoryEntry]:
        return [self._changed(one) for one in _history(_JOBS[job])[:limit]]

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def prepared(changed: Callable[[Any], Any] = lambda answer: answer) -> Iterator[Site]:
    """Serve the prepared jobs.

    :param changed: what is done to every answer of the coordinator.
    """
    with (
        patch.object(OperatorClient, "over", lambda *_, **__: PreparedClient(changed)),
        patch.object(reading, "datetime", _Now),
        patch.object(rendering, "datetime", _Now),
        closing(Page(parse_listen("127.0.0.1:0"))) as page,
    ):
        page.attach("127.0.0.1:7878", "127.0.0.1:7878")
        yield Site(int(page.url.rstrip("/").rpartition(":")[2]))


def with_every_text(value: Any, change: Callable[[str], str]) -> Any:
    """The same answer with every text changed that no type restricts: names, enums and documents stay."""
    if type(value) is str:
        return change(value)
    if isinstance(value, tuple):
        return tuple(with_every_text(one, change) for one in value)
    if is_dataclass(value) and not isinstance(value, type | CheckpointSettings | Document):
        names = [field.name for field in fields(value)]
        return replace(value, **{name: with_every_text(getattr(value, name), change) for name in names})
    return value


def _ago(**given: float) -> datetime:
    return NOW - timedelta(**given)


_COORDINATOR = CoordinatorDescription(
    role=CoordinatorRole.LEADS,
    detail="",
    leader=Leader(
        address="coordinator-0.coordinators.pipelines.svc:7878", term=41, since=_ago(days=6, hours=3), web=""
    ),
    standbys=(
        Standby(name="onceward coordinator-1:1", address="10.42.3.17", since=_ago(days=6, hours=3)),
        Standby(name="onceward coordinator-2:1", address="10.42.5.2", since=_ago(hours=2)),
    ),
    store="postgresql",
    shared=True,
    store_id="4c1e8f0a-2b7d-4f0e-9d55-8a64f7a7f3b1",
    commits=CommitTimes(
        commits=48_213,
        median=timedelta(milliseconds=2.3),
        p99=timedelta(milliseconds=6.1),
        worst=timedelta(milliseconds=212),
        window=timedelta(minutes=5),
    ),
    calls=23,
    most_calls=2000,
    connections=17,
    drivers=6,
    jobs=11,
    certificates=(
        Certificate(option="tls-cert", expires_at=NOW + timedelta(days=5, hours=7)),
        Certificate(option="client-ca", expires_at=NOW + timedelta(days=812)),
    ),
    settings=(
        Setting(name="listen", value="0.0.0.0:7878"),
        Setting(name="advertise", value="coordinator-0.coordinators.pipelines.svc:7878"),
        Setting(name="store", value="postgresql://onceward@db.pipelines.svc/onceward?sslmode=verify-full"),
        Setting(name="store-password", value="file:/run/secrets/onceward/store-password"),
        Setting(name="clusters", value="/etc/onceward/clusters.toml"),
        Setting(name="tls-cert", value="/run/secrets/onceward/tls.crt"),
        Setting(name="tls-key", value="/run/secrets/onceward/tls.key"),
        Setting(name="client-ca", value="/run/secrets/onceward/ca.crt"),
        Setting(name="rights", value="/etc/onceward/rights.toml"),
        Setting(name="reflection", value="off"),
        Setting(name="metrics", value=""),
        Setting(name="web", value="0.0.0.0:7879"),
    ),
    version="0.1.0",
)


def _job(name: str, status: JobStatus, last: int, **given: Any) -> JobSummary:
    usual: dict[str, Any] = {
        "status": status,
        "last_checkpoint": CheckpointId(last),
        "last_completed": CheckpointId(last),
        "last_completed_at": _ago(seconds=1.4),
        "progress": _progress(last) if status is JobStatus.RUNNING else None,
    }
    return job(name, **usual | given)


def _progress(seed: int) -> JobProgress:
    waves = [math.sin(seed + number / 4) + math.sin(seed * 3 + number / 1.7) / 3 for number in range(30)]
    lags = tuple(5_000 + round(1_800 * wave) for wave in waves)
    rates = tuple(21_000.0 - 4_000 * wave for wave in waves)
    return JobProgress(
        lag=lags[-1],
        measured_at=_ago(seconds=2.1),
        records_per_second=rates[-1],
        recent_lag=lags,
        recent_records_per_second=rates,
    )


_PARTITIONS = tuple(
    PartitionLag(partition=f"orders-{number}", position=90_120_400 + number * 7_919, lag=lag)
    for number, lag in ((7, None), (3, 2_410), (0, 1_200), (12, 344), (5, 0))
)
_RUNS = JobWait(what="acknowledgements of checkpoint 20933 by kafka-source, kafka-sink", since=_ago(seconds=0.62))
_JOBS: Mapping[str, JobSummary] = {
    job.job: job
    for job in (
        _job(
            HALTED,
            JobStatus.HALTED,
            CHECKPOINT,
            status_detail="checkpoint 1841: slot 3 is lost; slot 5 is in doubt",
            generation=Generation(4),
            last_completed_at=_ago(minutes=26),
            settled=False,
            waits=(JobWait(what="settling checkpoint 1841: 2 commits are not proved", since=_ago(minutes=26)),),
            oldest_transaction=Age(
                transaction="onceward.clicks-eu.kafka-sink.4.3f9a2c71.5",
                open_for=timedelta(minutes=13),
                timeout=timedelta(minutes=15),
            ),
        ),
        _job(
            RESTARTING,
            JobStatus.RESTARTING,
            990,
            status_detail="the driver failed: KafkaException: Local: All broker connections are down. The checkpoint "
            "was aborted, and its records belong to the next one",
            generation=Generation(7),
            last_completed_at=_ago(seconds=48),
            waits=(JobWait(what="its driver, which announced its return", since=_ago(seconds=12)),),
        ),
        _job(
            RUNNING,
            JobStatus.RUNNING,
            20932,
            generation=Generation(3),
            gone_outputs=(_GONE,),
            last_checkpoint=CheckpointId(20933),
            settled=False,
            waits=(_RUNS, JobWait(what="settling checkpoint 20932: 1 commit is not proved", since=_ago(seconds=0.9))),
            oldest_transaction=Age(
                transaction="onceward.orders-eur.kafka-sink.3.77aa01f2.0",
                open_for=timedelta(seconds=1.9),
                timeout=timedelta(minutes=15),
            ),
        ),
        _job(FINISHED, JobStatus.FINISHED, 212, last_completed_at=_ago(days=3, hours=2), generation=Generation(2)),
        _job(
            "audit-export",
            JobStatus.FINISHING,
            78,
            ending=Ending.STOP,
            waits=(JobWait(what="its driver to finish checkpoint 79", since=_ago(seconds=3)),),
            open_requests=(Request(id=RequestId("8f2e"), kind=CheckpointKind.SAVEPOINT, name="before-move"),),
        ),
        _job(
            "fraud-scores",
            JobStatus.RUNNING,
            418,
            generation=Generation(15),
            unacknowledged_losses=2,
            failures=3,
            failure="checkpoint 419 was aborted: a participant declined it: sink: not JSON. Input: orders-0",
            waits=(JobWait(what="the interval until its next checkpoint", since=_ago(seconds=0.2)),),
            takeover_permitted=True,
        ),
        _job(LETTERS, JobStatus.RUNNING, 5120, last_completed_at=_ago(seconds=2.2), generation=Generation(2)),
        _job(
            "sessions",
            JobStatus.SUSPENDED,
            64,
            last_completed_at=_ago(hours=9),
            settled=False,
            status_detail="the driver left: SIGTERM",
            orphan="the coordinator commits 4 transactions of checkpoint 64 in place of the driver",
            unreadable="row 64 of checkpoints is damaged",
            restore_from=CheckpointId(60),
            restore_reason="Ada: bad input since 06:00",
            adoption_permitted=Claim(
                store_id="0f6b2c", generation=Generation(2), completed=CheckpointId(64), holder="4d"
            ),
        ),
        _job(
            "shipments-by-warehouse-carrier-and-day-of-promised-delivery-eu1",  # the longest name
            JobStatus.RUNNING,
            301,
            generation=Generation(1),
        ),
        _job("prices", JobStatus.CREATED, 0, last_completed_at=None, generation=Generation(0)),
        _job("recount-2024", JobStatus.CANCELLED, 17, last_completed_at=_ago(days=40), generation=Generation(1)),
    )
}
_ENDS = (
    "the driver left: SIGTERM",
    "the driver failed: KafkaException: Local: All broker connections are down",
    "3 checkpoints in a row failed",
)


def _checkpoints(job: JobSummary) -> Sequence[CheckpointSummary]:
    """Newest first, one per second, each phase a little different."""
    found = []
    for behind, number in enumerate(range(job.last_checkpoint, max(0, job.last_checkpoint - 30), -1)):
        ran = timedelta(milliseconds=420 + number * 37 % 310)
        decided, settled = timedelta(milliseconds=number * 53 % 90), timedelta(milliseconds=60 + number * 29 % 140)
        triggered = (job.last_completed_at or NOW) - timedelta(seconds=1.1 * behind)
        usual: dict[str, Any] = {
            "checkpoint": CheckpointId(number),
            "base": CheckpointId(number - 1),
            "generation": job.generation,
            "kind": CheckpointKind.CHECKPOINT,
            "name": "",
            "state": CheckpointState.SETTLED,
            "abort_reason": None,
            "detail": "",
            "triggered_at": triggered,
            "decided_at": triggered + ran + decided,
            "settled_at": triggered + ran + decided + settled,
            "waited": timedelta(milliseconds=number * 17 % 120),
            "ran": ran,
            "decided": decided,
            "settled": settled,
            "records_read": 18_000 + number * 7919 % 5000,
            "records_written": 17_000 + number * 7919 % 5000,
            "bytes_read": 0,
            "bytes_written": 1_700_000,
            "committables": 4,
            "amendment": 0,
            "phases": _phases(ran, number),
        }
        undecided = {"decided_at": None, "settled_at": None, "decided": None, "settled": None}
        if number > job.last_completed:
            usual |= {**undecided, "state": CheckpointState.TRIGGERED, "ran": None, "triggered_at": _ago(seconds=0.62)}
            usual |= {"phases": {}, "records_read": 0, "records_written": 0, "committables": 0}
        elif number == job.last_completed and not job.settled:
            usual |= {"state": CheckpointState.COMPLETED, "settled_at": None, "settled": None}
        elif behind == 9:
            usual |= {**undecided, "state": CheckpointState.ABORTED, "abort_reason": AbortReason.EXPIRED}
            usual |= {
                "phases": {},
                "ran": timedelta(seconds=2.4),
                "detail": "kafka-sink did not acknowledge within 2 s",
            }
        elif behind == 4:
            usual |= {"kind": CheckpointKind.SAVEPOINT, "name": "before-upgrade", "amendment": 1}
        found.append(CheckpointSummary(**usual))
    return found


def _letters(listed: Sequence[CheckpointSummary]) -> Mapping[CheckpointId, Document]:
    """What each checkpoint keeps of the dead letters; nothing if it was aborted."""
    counts, kept = LetterCounts(letters=8), {}
    for one in reversed(listed):
        if one.state is CheckpointState.ABORTED:
            continue
        number = one.checkpoint
        found = {
            "JSONDecodeError": number % 4,
            "KeyError": 1 - min(1, number % 3),
            "UnsupportedCurrencyOfTheOrderInTheCountryOfItsWarehouseError": 1 - min(1, number % 7),
            "too_large": 1 - min(1, number % 11),
            "<b>Odd</b>": 1 - min(1, number % 13),
        }
        places = [Place("inventory-changes", number % 6, 88_120 + 37 * number - place) for place in range(3)]
        letters = {kind: (count, places[:count]) for kind, count in found.items() if count}
        counts = counts.followed(number, sum(found.values()), (), letters)
        kept[number] = counts.to_document()
    return kept


def _phases(ran: timedelta, seed: int) -> Phases:
    """All that a driver can measure, with a rest; some that an older driver has not measured."""
    if seed % 13 == 0:
        return {}
    parts = {
        Phase.IDLE: 4 * (seed % 3), Phase.PLAN: 2, Phase.SCHEDULE: 6, Phase.QUEUE: 3 * (seed % 4),
        Phase.READ: 14 + seed % 7, Phase.TRANSFORM: 8, Phase.PRODUCE: 30 + seed % 9, Phase.FLUSH: 9 + seed % 5,
        Phase.VOTE: 5, Phase.PROVE: 4,
    }  # fmt: skip
    return {phase: ran * 0.97 * part / sum(parts.values()) for phase, part in parts.items() if part}


def _snapshots() -> Mapping[ParticipantName, Snapshot]:
    ranges = [{"topic": "clicks", "partition": n, "start": 88_120 + 977 * n, "end": 89_324 + 989 * n} for n in range(6)]
    slots = [
        {
            "transactional_id": f"onceward.clicks-eu.kafka-sink.4.3f9a2c71.{slot}",
            "topics": {"clicks-clean": {}},
            "records": 1204 + 12 * slot,
            "bytes": 126_420 + 1260 * slot,
            "inputs": [one],
            "input_text": f"clicks-{slot} offsets [{one['start']}, {one['end']})",
        }
        for slot, one in enumerate(ranges)
    ]
    cursors = {str(one["partition"]): {"next": one["end"], "end": None, "epoch": 7} for one in ranges}
    positions = {"cluster": "main", "topics": {"clicks": {"id": "", "partitions": cursors}}}
    return {
        ParticipantName("kafka-source"): Snapshot(
            positions=Document(kind="kafka-positions", version=2, body=positions), records=7404
        ),
        _SINK: Snapshot(
            committables=tuple(
                Committable(slot=slot, document=Document(kind="kafka-transaction", version=1, body=body))
                for slot, body in enumerate(slots)
            ),
            records=7404,
        ),
    }


def _history(job: JobSummary) -> Sequence[HistoryEntry]:
    def entry(seconds: float, event: str, **given: Any) -> HistoryEntry:
        usual: dict[str, Any] = {
            "at": (job.last_completed_at or NOW) - timedelta(seconds=seconds),
            "event": event,
            "verdict": None,
            "generation": job.generation,
            "checkpoint": CheckpointId(0),
            "participant": "",
            "detail": "",
            "count": 1,
        }
        return HistoryEntry(**usual | given)

    found = [entry(0, "StatusChanged", detail=job.status_detail)] if job.status_detail else []
    for behind, checkpoint in enumerate(_checkpoints(job)[1:9]):
        found += [
            entry(behind * 1.1, "CheckpointSettled", checkpoint=checkpoint.checkpoint),
            entry(behind * 1.1 + 0.1, "CheckpointCompleted", checkpoint=checkpoint.checkpoint),
        ]
    late = "checkpoint 981 was aborted before this answer came"
    found.append(entry(11, "Acknowledge", verdict=Verdict.TOO_LATE, checkpoint=CheckpointId(981), detail=late, count=3))
    found.append(entry(3600, "GenerationGranted", participant="kafka-sink", detail="driver 9c1d5e0a"))
    return found
