"""The parts of a job on the driver, which its generations share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onceward.connectors.interfaces import Source
from onceward.driver.checkpoint_tasks import CheckpointTasks, Turn
from onceward.driver.journal import Journal
from onceward.driver.letters import LetterCount
from onceward.driver.narrowing import Narrowing
from onceward.driver.outputs import OpenOutput
from onceward.driver.progress import Progress
from onceward.driver.restarts import Hold
from onceward.driver.runtime import THREADS, Runtime
from onceward.driver.spark.tasks import Tasks
from onceward.driver.tracing import DriverTraces
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName

__all__ = ["Members"]


@dataclass(frozen=True, kw_only=True)
class Members:
    """The parts of one job."""

    job: JobName
    source: Source
    outputs: Sequence[OpenOutput]
    """In the order in which they are committed."""
    tasks: Tasks
    """Runs one plan at a time."""
    checkpoint_tasks: Callable[["Members", Turn], CheckpointTasks]
    """Makes what runs the tasks of a generation's checkpoints: per checkpoint, or staying ones."""
    settings: CheckpointSettings
    journal: Journal
    progress: Progress
    runtime: Runtime = THREADS
    narrowing: Narrowing = field(default_factory=Narrowing)
    hold: Hold = field(default_factory=Hold)
    traces: DriverTraces | None = None
    letters: LetterCount | None = None
    """None without dead letters."""
