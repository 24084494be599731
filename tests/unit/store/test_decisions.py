"""An operator's decision about a job is stored beside the evidence, and changes nothing else."""

from datetime import timedelta

from onceward.coordinator.store.store import Store
from onceward.protocol.facts import InputSkipped, JobForgotten, LossAcknowledged, SlotsResolved
from onceward.protocol.requests import Ruling
from onceward.protocol.values import (
    CheckpointId,
    CheckpointKind,
    CheckpointState,
    JobName,
    Outcome,
    Settlement,
    Snapshot,
)
from onceward.wire.rows import CheckpointDescription
from tests.support.events import SINK, SOURCE
from tests.support.stored_jobs import AT, JOB, StoredJob, snapshots

LATER = AT + timedelta(seconds=5)
LOST = Settlement(slot=1, outcome=Outcome.LOST, evidence="CompleteAbort")


def details(store: Store, checkpoint: int, job: JobName = JOB) -> CheckpointDescription:
    found = store.checkpoint(job, CheckpointId(checkpoint))
    assert found is not None
    return found


def test_a_ruling_keeps_proved_slots_and_drops_those_that_will_not_be_committed(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.trigger()
    job.complete()
    job.halt(LOST)
    proved = Settlement(slot=0, outcome=Outcome.COMMITTED, evidence="CompleteCommit")
    unseen = Settlement(slot=1, outcome=Outcome.IN_DOUBT, evidence="forgotten by the broker")
    job.write(
        SlotsResolved(
            checkpoint=CheckpointId(1),
            participant=SINK.name,
            slots=frozenset({1}),
            ruling=Ruling.GIVEN_UP,
            settled=frozenset({0, 1}),
            reason="ann: test data",
            evidence=(proved, unseen),
            forced=False,
        ),
        at=LATER,
    )
    assert store.load_jobs() == [job.durable]
    found = details(store, 1)
    recorded = [(one.settlement, one.participant, one.recorded_at) for one in found.settlements]
    assert recorded == [(proved, SINK.name, LATER), (LOST, SINK.name, AT)], "a later look that sees nothing erases none"
    assert found.snapshots[SINK.name].committables == ()
    assert (found.summary.committables, found.summary.records_written) == (0, 9)


def test_skipped_input_is_its_own_settled_checkpoint(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.checkpoints(1)
    positions = Snapshot(positions=snapshots(7)[SOURCE.name].positions)
    job.write(
        InputSkipped(
            checkpoint=CheckpointId(2),
            base=CheckpointId(1),
            generation=job.durable.generation,
            participant=SOURCE.name,
            snapshots={SOURCE.name: positions},
            skipped="in-0 [3, 10)",
            reason="ann: gone",
        ),
        at=LATER,
    )
    assert store.load_jobs() == [job.durable]
    found = details(store, 2)
    summary = found.summary
    assert found.snapshots == {SOURCE.name: positions}
    assert (summary.kind, summary.state, summary.base, summary.generation) == (
        CheckpointKind.SKIP, CheckpointState.SETTLED, 1, 1
    )  # fmt: skip
    assert (summary.name, summary.waited, summary.ran, summary.decided) == ("", timedelta(), None, None)
    assert (summary.triggered_at, summary.decided_at, summary.settled_at) == (LATER, LATER, LATER)
    assert (summary.records_read, summary.records_written, summary.bytes_read, summary.bytes_written) == (0, 0, 0, 0)
    assert (summary.committables, summary.amendment, summary.abort_reason) == (0, 0, None)
    assert summary.detail == "without in-0 [3, 10): ann: gone"


def test_a_forgotten_job_leaves_its_name_and_that_it_was_forgotten(store: Store) -> None:
    jobs = StoredJob(store), StoredJob(store, JobName("payments"))
    for job in jobs:
        job.open()
        job.lose(LOST)
        job.settle()
        job.end()
    orders, payments = jobs
    neighbour = details(store, 1, payments.durable.job)
    orders.write(JobForgotten(reason="ann: over"))
    assert store.load_jobs() == [orders.durable, payments.durable]
    assert (store.checkpoints(JOB, 10), store.generations(JOB, 10)) == ([], [])
    assert store.losses([JOB], 10, acknowledged=True) == []
    assert [(one.event, one.detail) for one in store.history(JOB, 10)] == [("JobForgotten", "ann: over")]
    name = payments.durable.job
    assert details(store, 1, name) == neighbour
    assert len(store.losses([name], 10, acknowledged=True)) == len(store.generations(name, 10)) == 1
    assert len(store.history(name, 100)) > 1
    orders.open()
    orders.checkpoints(1)
    assert details(store, 2).settlements == (), "the evidence went, too"


def test_evidence_is_listed_by_participant_and_slot_of_its_own_checkpoint_and_job(store: Store) -> None:
    jobs = StoredJob(store), StoredJob(store, JobName("payments"))
    for job in jobs:
        job.open()
        for number in (1, 2):
            job.trigger()
            job.complete()
            evidence = (
                Settlement(slot=slot, outcome=Outcome.IN_DOUBT, evidence=f"{job.durable.job} {number}")
                for slot in (2, 1)
            )
            job.halt(*evidence)
            job.settle()
    for job in jobs:
        for number in (1, 2):
            listed = details(store, number, job.durable.job).settlements
            reported = [(one.settlement.slot, one.settlement.evidence) for one in listed]
            assert reported == [(1, f"{job.durable.job} {number}"), (2, f"{job.durable.job} {number}")]


def test_an_acknowledgement_is_of_the_slots_that_it_names(store: Store) -> None:
    job = StoredJob(store)
    job.open()
    job.lose(LOST, Settlement(slot=0, outcome=Outcome.LOST, evidence="CompleteAbort"))
    known = LossAcknowledged(checkpoint=CheckpointId(1), participant=SINK.name, slots=frozenset({1}), reason="ann: ok")
    job.write(known, at=LATER)
    (left,) = store.losses([JOB], 10, acknowledged=False)
    assert (left.settlement.slot, left.document) == (0, snapshots(1)[SINK.name].committables[0].document)
    reported = [
        (one.settlement.slot, one.acknowledgement, one.participant) for one in store.losses([JOB], 9, acknowledged=True)
    ]
    assert reported == [(0, "", SINK.name), (1, "ann: ok", SINK.name)]
    assert store.load_jobs() == [job.durable]
