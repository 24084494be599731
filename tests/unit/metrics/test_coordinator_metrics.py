"""What a coordinator's metrics show, by a real coordinator and by facts."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.common.errors import FencedError, OncewardError, RefusedError
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.service.rights import digest_of
from onceward.coordinator.service.rights_file import RightsFile
from onceward.coordinator.store.store import Store
from onceward.protocol.answers import Note, Verdict
from onceward.protocol.committing import Age
from onceward.protocol.durable import Durable, Loss
from onceward.protocol.facts import (
    AbortReason,
    CheckpointAborted,
    CheckpointAmended,
    CheckpointCompleted,
    CheckpointSettled,
    CheckpointTriggered,
    CheckpointUnchanged,
    Fact,
    GenerationGranted,
    JobForgotten,
)
from onceward.protocol.state import JobState, PendingCheckpoint
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    SPARK_BATCH,
    CheckpointId,
    CheckpointKind,
    CompletedCheckpoint,
    Document,
    Generation,
    JobName,
    ParticipantName,
    Snapshot,
)
from onceward.watch.metrics.coordinator import COORDINATOR_METRICS, CoordinatorMetrics
from onceward.watch.metrics.places import OTHERS
from onceward.wire.v1.participants_pb2 import WatchRequest
from onceward.wire.v1.participants_pb2_grpc import ParticipantServiceStub
from tests.support.peers import PeerFiles, ServedCoordinator
from tests.support.scraped import Scraped
from tests.support.scripted import SETTINGS, SINK, SOURCE, ScriptedDriver, positions, slots
from tests.support.waiting import wait_until

A, B, C = JobName("a"), JobName("b"), JobName("c")
WALL = datetime(2026, 1, 2, tzinfo=UTC)


def collected(metrics: CoordinatorMetrics) -> Scraped:
    return Scraped({family.name: family for family in metrics.collect()})


class World:
    """A view with the states that a test gives."""

    def __init__(self) -> None:
        self.jobs: dict[JobName, JobState] = {}
        self.clock = 1000.0
        self.ages: dict[JobName, Age] = {}

    def states(self) -> Sequence[JobState]:
        return list(self.jobs.values())

    def now(self) -> float:
        return self.clock

    def oldest(self, state: JobState) -> Age | None:
        return self.ages.get(state.durable.job)

    def add(self, job: JobName, **durable: object) -> Durable:
        given = Durable(job=job, store_id="s", status=JobStatus.RUNNING, generation=Generation(3))
        self.jobs[job] = JobState(durable=replace(given, **durable))  # type: ignore[arg-type]
        return self.jobs[job].durable


@pytest.fixture
def world() -> World:
    return World()


def metrics_of(world: World, **options: int) -> CoordinatorMetrics:
    metrics = CoordinatorMetrics(wall=lambda: WALL.timestamp() + 60, **options)  # type: ignore[arg-type]
    metrics.attached(world, {})
    return metrics


def completed(checkpoint: int = 1, *, records: int = 10, settled: bool = False) -> CheckpointCompleted:
    return CheckpointCompleted(
        checkpoint=CheckpointId(checkpoint),
        snapshots={
            SOURCE.name: replace(positions(1), records=records),
            SINK.name: Snapshot(committables=slots(1).committables, records=records - 1, bytes=records * 100),
        },
        settled=settled,
        ran_s=0.2,
        decided_s=0.05,
    )


def aborted(reason: AbortReason) -> CheckpointAborted:
    return CheckpointAborted(
        checkpoint=CheckpointId(2), generation=Generation(3), reason=reason, detail="secret", counted=True, ran_s=1.0
    )


def test_facts_become_counters_and_phases(world: World) -> None:
    durable = world.add(A)
    metrics = metrics_of(world)
    trigger = CheckpointTriggered(
        checkpoint=CheckpointId(1),
        base=CheckpointId(0),
        generation=Generation(3),
        kind=CheckpointKind.CHECKPOINT,
        request=None,
        waited_s=0.5,
    )
    facts: list[Fact] = [
        *(trigger, completed(), CheckpointSettled(checkpoint=CheckpointId(1), took_s=2.0)),
        *(CheckpointUnchanged(checkpoint=CheckpointId(2)), aborted(AbortReason.EXPIRED)),
        CheckpointAmended(
            checkpoint=CheckpointId(1),
            participant=ParticipantName("sink"),
            amendment=1,
            slots=frozenset({0}),
            committables=(),
        ),
    ]
    metrics.published(durable, facts, WALL)
    found = collected(metrics)
    assert {dict(key)["result"]: n for key, n in found.series("onceward_checkpoints_total", job_name="a").items()} == {
        "completed": 1,
        "unchanged": 1,
        "aborted": 1,
    }
    assert found.value("onceward_checkpoint_aborts_total", job_name="a", reason="expired") == 1
    for phase, seconds in {"wait": 0.5, "run": 0.2, "decide": 0.05, "settle": 2.0}.items():
        assert found.value("onceward_checkpoint_phase_seconds_count", phase=phase) == 1
        assert found.value("onceward_checkpoint_phase_seconds_sum", phase=phase) == seconds
        assert found.value("onceward_job_checkpoint_phase_seconds_total", job_name="a", phase=phase) == seconds
    for name, value in {
        "records_read": 10,
        "replays": 1,
    }.items():
        assert found.value(f"onceward_{name}_total", job_name="a") == value
    assert found.value("onceward_records_written_total", job_name="a", output=SINK.name) == 9
    assert found.value("onceward_bytes_written_total", job_name="a", output=SINK.name) == 1000
    assert found.value("onceward_job_last_completed_timestamp_seconds", job_name="a") == WALL.timestamp()
    assert found.value("onceward_job_last_completed_age_seconds", job_name="a") == 60


def test_the_published_state_becomes_gauges(world: World) -> None:
    sink = CompletedCheckpoint(
        id=CheckpointId(1), base=CheckpointId(0), generation=Generation(3), snapshots={SINK.name: slots(1, count=3)}
    )
    lost = Loss(checkpoint=CheckpointId(1), participant=SINK.name, slots=frozenset({4, 5}))
    world.add(A, completed=sink, failures=2, losses=(lost,))
    world.jobs[A] = replace(
        world.jobs[A],
        pending=PendingCheckpoint(started=993.0),
        settled_slots={SINK.name: frozenset({1})},
    )
    world.ages[A] = Age(transaction="t", open_for=timedelta(seconds=90), timeout=timedelta(seconds=100))
    world.add(B, status=JobStatus.HALTED)
    metrics = metrics_of(world)
    metrics.published(world.jobs[A].durable, [completed()], WALL)
    world.clock += 7
    found = collected(metrics)
    for name, value in {
        "generation": 3,
        "failures_in_row": 2,
        "unacknowledged_losses": 2,
        "pending_age_seconds": 14,
        "unsettled_committables": 2,
        "unsettled_age_seconds": 60,
        "oldest_transaction_age_seconds": 90,
        "oldest_transaction_timeout_ratio": 0.9,
        "progress_age_seconds": 7,
    }.items():
        assert found.value(f"onceward_job_{name}", job_name="a") == value, name
    assert found.value("onceward_job_status", job_name="a", status="running") == 1
    assert found.value("onceward_job_status", job_name="b") == 1
    assert found.value("onceward_jobs", status="halted") == 1
    assert found.value("onceward_jobs", status="suspended") == 0
    assert not found.series("onceward_job_last_completed_age_seconds", job_name="b")
    assert found.value("onceward_leader") == 1
    metrics.detached()
    assert collected(metrics).value("onceward_leader") == 0
    assert not collected(metrics).series("onceward_job_status")
    metrics.attached(world, {}, term=7)
    found = collected(metrics)
    assert (found.value("onceward_leader"), found.value("onceward_term")) == (1, 7)
    assert found.value("onceward_records_read_total", job_name="a") == 10  # it counts for the process


def test_jobs_beyond_the_bound_share_series_with_sums_and_the_worst_ages(world: World) -> None:
    for job, failures in ((A, 0), (B, 1), (C, 2)):
        world.add(job, failures=failures)
    world.jobs[B] = replace(world.jobs[B], pending=PendingCheckpoint(started=999.0))
    world.jobs[C] = replace(world.jobs[C], pending=PendingCheckpoint(started=990.0))
    metrics = metrics_of(world, most_jobs=1)
    for job in (A, B, C):
        metrics.published(world.jobs[job].durable, [completed()], WALL + timedelta(seconds=ord(job)))
    found = collected(metrics)
    assert found.labels("onceward_job_failures_in_row") == {"a", OTHERS}
    assert found.value("onceward_job_failures_in_row", job_name=OTHERS) == 3
    assert found.value("onceward_job_pending_age_seconds", job_name=OTHERS) == 10
    assert found.value("onceward_job_status", job_name=OTHERS, status="running") == 2
    assert found.value("onceward_records_read_total", job_name=OTHERS) == 20
    assert found.value("onceward_records_written_total", job_name=OTHERS, output=OTHERS) == 18
    earliest = (WALL + timedelta(seconds=ord("b"))).timestamp()
    assert found.value("onceward_job_last_completed_timestamp_seconds", job_name=OTHERS) == earliest


def test_what_is_written_is_counted_by_output(world: World) -> None:
    other = replace(SINK, name=ParticipantName("lake"))
    durable = replace(world.add(A), participants=(SOURCE, SINK, other))
    metrics = metrics_of(world)
    fact = completed()
    metrics.published(durable, [fact], WALL)
    found = collected(metrics)
    assert found.value("onceward_records_written_total", job_name="a", output="lake") == 0, "it has written nothing yet"
    more = Snapshot(committables=(), records=3, bytes=70)
    metrics.published(durable, [replace(fact, snapshots={**fact.snapshots, other.name: more})], WALL)
    found = collected(metrics)
    assert found.value("onceward_records_written_total", job_name="a", output="lake") == 3
    assert found.value("onceward_bytes_written_total", job_name="a", output="lake") == 70
    assert found.value("onceward_records_written_total", job_name="a", output=SINK.name) == 18


def test_a_new_job_takes_a_place_with_its_first_fact(world: World) -> None:
    metrics = metrics_of(world)
    granted = GenerationGranted(
        generation=Generation(1),
        driver="d",
        participants=(SOURCE, SINK),
        settings=SETTINGS,
        first_id=CheckpointId(0),
    )
    metrics.published(world.add(A), [granted], WALL)
    found = collected(metrics)
    assert found.labels("onceward_job_generation") == {"a"}
    assert found.value("onceward_records_read_total", job_name="a") == 0


def test_what_spark_reads_is_no_sample_of_records_read(world: World) -> None:
    metrics = metrics_of(world)
    source = replace(SOURCE, kind=SPARK_BATCH)
    durable = replace(world.add(A), participants=(source, SINK))
    granted = GenerationGranted(
        generation=Generation(1), driver="d", participants=(source, SINK), settings=SETTINGS, first_id=CheckpointId(0)
    )
    metrics.published(durable, [granted], WALL)
    assert collected(metrics).series("onceward_records_read_total", job_name="a") == {}
    fact = completed()
    batch = replace(fact.snapshots[SOURCE.name], positions=Document(kind=SPARK_BATCH, version=1, body={}), records=1)
    metrics.published(durable, [replace(fact, snapshots={**fact.snapshots, SOURCE.name: batch})], WALL)
    found = collected(metrics)
    assert found.series("onceward_records_read_total", job_name="a") == {}
    assert found.value("onceward_records_written_total", job_name="a") == 9


def test_a_forgotten_job_leaves_and_its_place_is_free(world: World) -> None:
    for job in (A, B):
        world.add(job)
    metrics = metrics_of(world, most_jobs=1)
    metrics.published(world.jobs[A].durable, [completed()], WALL)
    metrics.published(world.jobs[B].durable, [completed()], WALL)
    metrics.published(world.jobs[A].durable, [JobForgotten(reason="gone")], WALL)
    world.add(A, status=JobStatus.FORGOTTEN)
    metrics.published(world.jobs[B].durable, [completed(2)], WALL)
    found = collected(metrics)
    assert "a" not in {sample.labels.get("job_name") for sample in found.samples}
    assert found.value("onceward_records_read_total", job_name="b") == 10
    assert found.value("onceward_records_read_total", job_name=OTHERS) == 10  # a counter never decreases
    assert found.value("onceward_jobs", status="forgotten") == 1
    assert found.series("onceward_job_status", job_name=OTHERS) == {}


def test_jobs_that_have_ended_take_a_place_last(world: World) -> None:
    world.add(A, status=JobStatus.FINISHED)
    world.add(B)
    assert collected(metrics_of(world, most_jobs=1)).labels("onceward_job_generation") == {"b", OTHERS}


def test_no_text_from_outside_becomes_a_label(world: World) -> None:
    durable = world.add(A, status_detail="secret", unreadable="secret")
    metrics = metrics_of(world)
    note = Note(
        what="Acknowledge",
        verdict=Verdict.FENCED,
        generation=Generation(1),
        checkpoint=CheckpointId(1),
        participant="secret",
        detail="secret",
    )
    metrics.refused(note)
    metrics.published(durable, [aborted(AbortReason.DECLINED), JobForgotten(reason="secret")], WALL)
    found = collected(metrics)
    assert found.value("onceward_refusals_total", call="Acknowledge", reason="fenced") == 1
    assert not [sample for sample in found.samples if "secret" in str(sample)]


def test_every_described_metric_is_collected_with_its_labels(world: World) -> None:
    durable = world.add(A)
    metrics = metrics_of(world)
    metrics.published(durable, [completed(), aborted(AbortReason.EXPIRED)], WALL)
    families = {family.name: family for family in metrics.collect()}
    assert list(families) == list(dict.fromkeys(families))
    for described in COORDINATOR_METRICS:
        family = families.pop(described.name.removesuffix("_total"))
        assert family.type == described.kind
        assert all(set(sample.labels) - {"le"} == set(described.labels) for sample in family.samples), described.name
    assert families == {}


# -- a real coordinator


@pytest.fixture
def metrics() -> CoordinatorMetrics:
    return CoordinatorMetrics()


@pytest.fixture
def observed(tmp_path: Path, metrics: CoordinatorMetrics) -> Iterator[EmbeddedCoordinator]:
    with EmbeddedCoordinator(tmp_path / "state", observer=metrics) as coordinator:
        yield coordinator


def test_a_running_job_shows_its_true_numbers(observed: EmbeddedCoordinator, metrics: CoordinatorMetrics) -> None:
    with connect(observed.address) as client, OperatorClient(observed.address) as people:
        driver = ScriptedDriver(client, A, settings=SETTINGS)
        driver.wait_committed(20)
        driver.close()
        rows = [row for row in people.checkpoints(A, 1000) if row.records_read]
        summary = people.job(A)
        found = collected(metrics)
    done = found.value("onceward_checkpoints_total", job_name="a", result="completed")
    assert done >= 20
    assert found.value("onceward_records_read_total", job_name="a") == done
    assert found.value("onceward_records_written_total", job_name="a") == 2 * done
    assert found.value("onceward_job_generation", job_name="a") == 1
    assert found.value("onceward_store_commit_seconds_count") >= done
    assert 0 < found.value("onceward_store_commit_seconds_sum") < 600
    assert summary.last_completed_at is not None
    assert rows[0].checkpoint == summary.last_completed
    shown = found.value("onceward_job_last_completed_timestamp_seconds", job_name="a")
    assert abs(shown - summary.last_completed_at.timestamp()) < 60


def test_a_restart_remembers_when_the_last_checkpoint_was_completed(tmp_path: Path) -> None:
    with EmbeddedCoordinator(tmp_path / "state") as first, connect(first.address) as client:
        driver = ScriptedDriver(client, A, settings=SETTINGS)
        driver.wait_committed(3)
        driver.close()
        with OperatorClient(first.address) as people:
            at = people.job(A).last_completed_at
    metrics = CoordinatorMetrics()
    with EmbeddedCoordinator(tmp_path / "state", observer=metrics):
        found = collected(metrics)
    assert at is not None
    assert found.value("onceward_job_last_completed_timestamp_seconds", job_name="a") == at.timestamp()
    assert not found.series("onceward_checkpoints_total")  # counters begin at 0 in each process


def test_refusals_are_counted_by_verdict_and_by_status(
    observed: EmbeddedCoordinator, metrics: CoordinatorMetrics
) -> None:
    with connect(observed.address) as client, OperatorClient(observed.address) as people:
        driver = ScriptedDriver(client, A, settings=SETTINGS)
        driver.wait_committed(1)
        with pytest.raises(OncewardError):
            people.job(JobName("unknown"))
        ScriptedDriver(client, A, settings=SETTINGS, takeover=True).wait_committed(1)
        with pytest.raises(FencedError):
            driver.session.decline(CheckpointId(99), SINK.name, "too late")
        wait_until(lambda: refusals(metrics, "DescribeJob", "not_found") == 1, "the unknown job is counted")
        wait_until(lambda: refusals(metrics, "Decline", "fenced") >= 1, "the fenced driver is counted")


def test_calls_without_the_right_and_of_unknown_peers_are_counted(tmp_path: Path, metrics: CoordinatorMetrics) -> None:
    viewer, stranger = tmp_path / "viewer", tmp_path / "stranger"
    for file in (viewer, stranger):
        file.write_text(f"the-token-of-a-{file.name}-0123456789abcdef")
    files = PeerFiles(tmp_path)
    files.grant(f'[peers.viewer]\ntokens = ["sha256:{digest_of(viewer.read_text()).hex()}"]\nview = ["a"]\n')
    rights, tls = RightsFile(files.rights, certificates=False), files.server_tls(client_ca=False)
    with ServedCoordinator(tmp_path / "store.db", tls=tls, rights=rights, observer=metrics) as served:
        with OperatorClient(served.address, tls=files.client_tls(), token=f"file:{viewer}") as people:
            for asked in (people.stop, people.job):
                with pytest.raises(RefusedError, match="PERMISSION_DENIED"):
                    asked(B)
        with (
            OperatorClient(served.address, tls=files.client_tls(), token=f"file:{stranger}") as people,
            pytest.raises(RefusedError, match="UNAUTHENTICATED"),
        ):
            people.job(A)
        for call, reason in (
            ("StopJob", "permission_denied"),
            ("DescribeJob", "permission_denied"),
            ("DescribeJob", "unauthenticated"),
        ):
            wait_until(lambda: refusals(metrics, call, reason) == 1, f"the refused {call} is counted")  # noqa: B023


def refusals(metrics: CoordinatorMetrics, call: str, reason: str) -> float:
    """A call is counted just after its status was sent."""
    return sum(collected(metrics).series("onceward_refusals_total", call=call, reason=reason).values())


def test_refused_streams_of_instructions_are_counted(
    observed: EmbeddedCoordinator, metrics: CoordinatorMetrics
) -> None:
    with grpc.insecure_channel(observed.address) as channel, pytest.raises(grpc.RpcError, match="NOT_FOUND"):
        next(ParticipantServiceStub(channel).Watch(WatchRequest(job="unknown", generation=1, driver="secret")))
    wait_until(lambda: refusals(metrics, "Watch", "not_found") == 1, "the refused stream is counted")


def test_a_scrape_reads_no_store(
    observed: EmbeddedCoordinator, metrics: CoordinatorMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(observed.address) as client:
        driver = ScriptedDriver(client, A, settings=SETTINGS)
        driver.wait_committed(3)
        driver.close()

    def read(*_: object) -> None:
        raise AssertionError("the store was read")

    for name in [name for name in vars(Store) if not name.startswith("__")]:
        monkeypatch.setattr(Store, name, read)
    assert collected(metrics).value("onceward_job_generation", job_name="a") == 1
    monkeypatch.undo()
