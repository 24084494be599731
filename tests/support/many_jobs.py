"""A store that holds many jobs, written quickly."""

from onceward.coordinator.store.store import Store
from onceward.protocol import facts
from onceward.protocol.durable import Durable
from onceward.protocol.evolve import evolve
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus, Transition
from onceward.protocol.values import NO_CHECKPOINT, CheckpointId, CheckpointKind, Generation, JobName
from tests.support.events import SINK, SOURCE
from tests.support.stored_jobs import AT, snapshots

__all__ = ["write_jobs"]

_TOGETHER = 500
_FIRST, _ONE = Generation(1), CheckpointId(1)
_LIFE: tuple[facts.Fact, ...] = (
    facts.GenerationGranted(
        generation=_FIRST,
        driver="d1",
        participants=(SOURCE, SINK),
        settings=CheckpointSettings(),
        first_id=NO_CHECKPOINT,
    ),
    facts.StatusChanged(transition=Transition.OPENED, status=JobStatus.RUNNING, detail=""),
    facts.CheckpointTriggered(
        checkpoint=_ONE,
        base=NO_CHECKPOINT,
        generation=_FIRST,
        kind=CheckpointKind.CHECKPOINT,
        request=None,
        waited_s=0.0,
    ),
    facts.CheckpointCompleted(
        checkpoint=_ONE, snapshots=snapshots(1), settled=False, ran_s=0.0, decided_s=0.0, phases={}
    ),
    facts.CheckpointSettled(checkpoint=_ONE, took_s=0.0),
    facts.GenerationEnded(generation=_FIRST, detail="it left"),
    facts.StatusChanged(transition=Transition.LEFT, status=JobStatus.SUSPENDED, detail=""),
)


def write_jobs(store: Store, numbers: range) -> list[Durable]:
    """Write suspended jobs with these numbers, each with one settled checkpoint."""
    jobs = []
    for number in numbers:
        durable = Durable(job=JobName(f"job-{number:05}"), store_id=store.store_id)
        for fact in _LIFE:
            durable = evolve(durable, fact)
        jobs.append(durable)
    for begin in range(0, len(jobs), _TOGETHER):
        store.apply([(durable, _LIFE) for durable in jobs[begin : begin + _TOGETHER]], at=AT)
    return jobs
