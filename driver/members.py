"""The parts of a job on the driver, which its generations share."""

from dataclasses import dataclass, field

from onceward.connectors.interfaces import Committer, Sink, Source
from onceward.driver.journal import Journal
from onceward.driver.narrowing import Narrowing
from onceward.driver.progress import Progress
from onceward.driver.runtime import THREADS, Runtime
from onceward.driver.spark.tasks import Tasks
from onceward.driver.staying.tasks import StayingTasks
from onceward.driver.tracing import DriverTraces
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName

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
