"""A loss that was given up stays known until an operator acknowledges it, whatever happens to its checkpoint."""

from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest

from onceward.coordinator.store.store import Store
from onceward.protocol.facts import LossAcknowledged
from onceward.protocol.values import CheckpointId, JobName, Outcome, Settlement
from onceward.wire.limits import MAX_JOBS
from tests.support.events import SINK
from tests.support.places import Place
from tests.support.stored_jobs import AT, JOB, StoredJob

LOST = Settlement(slot=1, outcome=Outcome.LOST, evidence="slot 1: 7 records of in-0 [3, 10). CompleteAbort")


def a_loss(store: Store, *, after: int = 0) -> StoredJob:
    """A job whose slot 1 of checkpoint 1 was given up."""
    job = StoredJob(store)
    job.open()
    job.checkpoints(after)
    job.lose(LOST)
    job.settle()
    return job


def acknowledged() -> LossAcknowledged:
    return LossAcknowledged(
        checkpoint=CheckpointId(1), participant=SINK.name, slots=frozenset({1}), reason="ann: test data"
    )


def test_a_report_names_the_records_and_outlives_its_checkpoint_and_restarts(store: Store, place: Place) -> None:
    job = a_loss(store, after=1)
    job.checkpoints(5)
    assert store.prune([(JOB, 1)])
    assert store.checkpoint(JOB, CheckpointId(2)) is None
    store.close()
    with closing(place.open()) as again:
        assert again.load_jobs()[0].losses == job.durable.losses
        (report,) = again.losses(None, 10, acknowledged=False)
    assert (report.job, report.checkpoint, report.settlement) == (JOB, 2, LOST)
    assert report.document.body, "the committable, which says what the records were made of"
    assert (report.reason, report.recorded_at, report.acknowledged_at) == ("on_lost=skip", AT, None)


def test_a_skipped_slot_is_never_committed(store: Store) -> None:
    job = a_loss(store)
    (loaded,) = store.load_jobs()
    assert loaded == job.durable
    assert loaded.completed is not None
    assert [one.slot for one in loaded.completed.snapshots[SINK.name].committables] == [0]


def test_an_acknowledged_loss_is_listed_only_on_request_with_who_and_why(store: Store) -> None:
    job = a_loss(store)
    job.write(acknowledged(), at=AT + timedelta(hours=1))
    assert job.durable.losses == ()
    assert store.losses([JOB], 10, acknowledged=False) == []
    (report,) = store.losses([JOB], 10, acknowledged=True)
    assert (report.acknowledgement, report.acknowledged_at) == ("ann: test data", AT + timedelta(hours=1))
    assert "ann: test data" in store.history(JOB, 1)[0].detail


def test_losses_are_listed_newest_first_then_by_job_checkpoint_and_slot(store: Store) -> None:
    other = replace(LOST, slot=0)
    second = StoredJob(store, JobName("payments"))
    second.open()
    second.lose(LOST, other)
    first = StoredJob(store)
    first.open()
    first.checkpoints(1)
    for lost, seconds in (((LOST, other), 0), ((LOST,), 0), ((LOST,), 1)):
        first.lose(*lost, at=AT + timedelta(seconds=seconds))
        first.settle()
    listed = [(one.job, one.checkpoint, one.settlement.slot) for one in store.losses(None, 10, acknowledged=False)]
    of_first = [(JOB, 4, 1), (JOB, 2, 0), (JOB, 2, 1), (JOB, 3, 1)]
    assert listed == [*of_first, ("payments", 1, 0), ("payments", 1, 1)]
    of_job = [(one.checkpoint, one.settlement.slot) for one in store.losses([JOB], 3, acknowledged=False)]
    assert of_job == [(4, 1), (2, 0), (2, 1)]
    of_second = store.losses([second.durable.job], 10, acknowledged=False)
    assert {one.job for one in of_second} == {second.durable.job}
    assert {one.acknowledgement for one in store.losses([JOB], 10, acknowledged=True)} == {""}
    assert store.checkpoints(JOB, 1)[0].committables == 1, "what is given up is none of the checkpoint's any more"


def test_losses_of_as_many_jobs_as_a_store_holds_are_listed_at_once(store: Store) -> None:
    job = a_loss(store)
    others = [JobName(f"job-{number}") for number in range(MAX_JOBS - 1)]
    (report,) = store.losses([*others, JOB], 10, acknowledged=True)
    assert report.job == job.durable.job
    assert store.losses(others, 10, acknowledged=True) == []


def test_a_loss_that_has_no_report_any_more_keeps_no_other_from_being_acknowledged(
    store: Store, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    job = StoredJob(store)
    job.open()
    job.lose(replace(LOST, slot=0), LOST)
    store.close()
    place.change("DELETE FROM losses WHERE slot = 0")
    with closing(place.open()) as again:
        StoredJob(again, known=job.durable).write(replace(acknowledged(), slots=frozenset({0, 1})))
        assert again.losses([JOB], 10, acknowledged=False) == []
    assert "the record of the loss of slot 0 is not what was written" in caplog.text


def test_a_damaged_report_is_listed_as_such_and_can_be_acknowledged(store: Store, place: Place) -> None:
    job = a_loss(store)
    store.close()
    place.change("UPDATE losses SET document = '{}'")
    with closing(place.open()) as damaged:
        assert damaged.load_jobs() == [job.durable], "which slots were given up is known all the same"
        (report,) = damaged.losses([JOB], 10, acknowledged=False)
        assert (report.checkpoint, report.settlement.slot) == (1, 1)
        assert "not what was written" in report.settlement.evidence
        again = StoredJob(damaged, known=job.durable)
        again.write(acknowledged())
        assert again.durable.losses == ()
        assert damaged.losses([JOB], 10, acknowledged=False) == []
        (report,) = damaged.losses([JOB], 10, acknowledged=True)
        assert "not what was written" in report.settlement.evidence, "no checksum makes it look whole again"
        assert report.acknowledgement, "the acknowledgement is shown"
