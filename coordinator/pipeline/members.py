"""The parts of a job on the driver, which its generations share."""

from dataclasses import dataclass, field

from onceward.coordinator.pipeline.interfaces import Committer, Sink, Source
from onceward.coordinator.pipeline.journal import Journal
from onceward.coordinator.pipeline.narrowing import Narrowing
from onceward.coordinator.pipeline.progress import Progress
from onceward.coordinator.pipeline.runtime import THREADS, Runtime
from onceward.coordinator.pipeline.spark_tasks import Tasks
from onceward.coordinator.pipeline.staying.tasks import StayingTasks
from onceward.coordinator.pipeline.tracing import DriverTraces
from onceward.coordinator.protocol.settings import CheckpointSettings
from onceward.coordinator.protocol.values import JobName

__all__ = ["Members"]


@dataclass(frozen=True, kw_only=True)
class Members:
    """The parts of one job."""

    job: JobName
    source: Source
    sink: Sink
    committer: Committer
    tasks: Tasks
    settings: CheckpointSettings
    journal: Journal
    progress: Progress
    runtime: Runtime = THREADS
    narrowing: Narrowing = field(default_factory=Narrowing)
    traces: DriverTraces | None = None
    staying: StayingTasks | None = None
    """Reads and writes checkpoints, if the job's tasks stay; then ``tasks`` only writes lost slots again, and looks for
    records at fault."""
