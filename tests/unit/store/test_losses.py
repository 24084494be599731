"""A loss that was given up is known until a person acknowledges it, whatever else becomes of its checkpoint."""

from contextlib import closing
from datetime import timedelta
from pathlib import Path

from coordinator.protocol.facts import LossAcknowledged, LossSkipped
from coordinator.protocol.values import CheckpointId, Outcome, Settlement
from coordinator.store.store import Store
from tests.unit.protocol.histories import SINK
from tests.unit.store.jobs import AT, JOB, StoredJob, change

LOST = Settlement(slot=1, outcome=Outcome.LOST, evidence="slot 1: 7 records of in-0 [3, 10). CompleteAbort")


def a_loss(store: Store) -> StoredJob:
    """Slot 1 of checkpoint 1 is given up."""
    job = StoredJob(store)
    job.open()
    job.trigger()
    job.complete()
    assert job.durable.completed is not None
    committables = job.durable.completed.snapshots[SINK.name].committables
    job.write(
        LossSkipped(
            checkpoint=CheckpointId(1),
            participant=SINK.name,
            settlements=(LOST,),
            committables=tuple(committable for committable in committables if committable.slot == 1),
            reason="on_lost=skip",
        )
    )
    job.settle()
    return job


def acknowledged() -> LossAcknowledged:
    return LossAcknowledged(
        checkpoint=CheckpointId(1), participant=SINK.name, slots=frozenset({1}), reason="ann: test data"
    )


def test_a_report_names_the_records_and_outlives_its_checkpoint_and_restarts(store: Store, file: Path) -> None:
    job = a_loss(store)
    job.checkpoints(5)
    assert store.prune(JOB, 1)
    assert store.checkpoint(JOB, CheckpointId(1)) is None
    store.close()
    with closing(Store.open(f"sqlite:///{file}")) as again:
        assert again.load_jobs()[0].losses == job.durable.losses
        (report,) = again.losses(None, 10, acknowledged=False)
    assert (report.job, report.checkpoint, report.settlement) == (JOB, 1, LOST)
    assert report.document.body, "the committable, which says what the records were made of"
    assert (report.reason, report.recorded_at, report.acknowledged_at) == ("on_lost=skip", AT, None)


def test_what_is_given_up_is_committed_by_nobody_any_more(store: Store) -> None:
    job = a_loss(store)
    (loaded,) = store.load_jobs()
    assert loaded == job.durable
    assert loaded.completed is not None
    assert [one.slot for one in loaded.completed.snapshots[SINK.name].committables] == [0]


def test_an_acknowledged_loss_is_listed_only_when_it_is_asked_for_with_who_and_why(store: Store) -> None:
    job = a_loss(store)
    job.write(acknowledged(), at=AT + timedelta(hours=1))
    assert job.durable.losses == ()
    assert store.losses(JOB, 10, acknowledged=False) == []
    (report,) = store.losses(JOB, 10, acknowledged=True)
    assert (report.acknowledgement, report.acknowledged_at) == ("ann: test data", AT + timedelta(hours=1))
    assert "ann: test data" in store.history(JOB, 1)[0].detail


def test_a_damaged_report_is_listed_as_such_and_can_be_acknowledged(store: Store, file: Path) -> None:
    job = a_loss(store)
    store.close()
    change(file, "UPDATE losses SET document = '{}'")
    with closing(Store.open(f"sqlite:///{file}")) as damaged:
        assert damaged.load_jobs() == [job.durable], "which slots were given up is known all the same"
        (report,) = damaged.losses(JOB, 10, acknowledged=False)
        assert (report.checkpoint, report.settlement.slot) == (1, 1)
        assert "not what was written" in report.settlement.evidence
        again = StoredJob(damaged, known=job.durable)
        again.write(acknowledged())
        assert again.durable.losses == ()
        assert damaged.losses(JOB, 10, acknowledged=False) == []
        (report,) = damaged.losses(JOB, 10, acknowledged=True)
        assert "not what was written" in report.settlement.evidence, "no checksum makes it look whole again"
        assert report.acknowledged_at is not None
