"""The real sink of tables on the modelled one, with a check that its sweep holds."""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onceward.common.links import Links
from onceward.connections.storage import Storage
from onceward.connectors.interfaces import Chosen, Finding, JobContext
from onceward.protocol.committing import PreCommitted
from onceward.protocol.values import Committable, JobName, OnLost, Participant, ParticipantName, Role
from onceward.sinks.lake.control.system import LakeSystem
from onceward.sinks.lake.driver.session import LakeSession
from onceward.sinks.lake.executor.writer import LakeSlotWriter
from tests.simulation.lake_files import LoadedVersion, ModelStorage, load
from tests.simulation.scheduler import Process
from tests.simulation.systems import ConnectedSink
from tests.simulation.threads import scheduler
from tests.support.table_documents import TableFile, TableFiles

if TYPE_CHECKING:
    from tests.simulation.lake import Lake

__all__ = ["TableSink", "TableSystem"]

_FOLDER = "data"
_COLUMNS = pa.schema([("value", pa.binary()), ("partition", pa.int32())])


class TableSink(ConnectedSink):
    def __init__(self, lake: "Lake", process: Process, name: str, on_lost: OnLost) -> None:
        self.participant = Participant(name=ParticipantName(name), role=Role.SINK, kind=lake.kind, on_lost=on_lost)
        self._lake = lake
        self._process = process

    def connect(self, context: JobContext) -> "TableSession":
        """Raises StorageError."""
        self.session = TableSession(self.participant, context, self._lake, self._process)
        return self.session


class TableSession(LakeSession):
    @property
    def columns(self) -> Mapping[str, Any]:
        return {one.name: str(one.type) for one in _COLUMNS}

    def __init__(self, participant: Participant, context: JobContext, lake: "Lake", process: Process) -> None:
        system = TableSystem(lake, process, generation=lambda: self._generation, links=context.links)
        super().__init__(participant, context, system, system.load())
        self._lake = lake

    def preflight(self) -> Sequence[Finding]:
        return ()

    def choose(self, given: Sequence[tuple[str, str]]) -> Sequence[Chosen]:
        return [Chosen(column=name, name=name) for name, _ in given]

    def write(self) -> "TableWriter":
        return TableWriter(lake=self._lake, vote_bytes=self._lake.vote_bytes)


class TableSystem(LakeSystem):
    committable = TableFiles
    folder = _FOLDER

    def __init__(
        self,
        lake: "Lake",
        process: Process,
        *,
        generation: Callable[[], int | None],
        links: Links | None = None,
    ) -> None:
        super().__init__("the modelled table", generation=generation, links=links)
        self._lake = lake
        self._process = process

    def load(self) -> LoadedVersion:
        return load(self._lake, self._process)

    def open_storage(self) -> Storage:
        return ModelStorage(self._lake, self._process)

    def sweep(
        self,
        job: JobName,
        *,
        keep: Collection[Committable] = (),
        staying: Collection[str] = (),
        known: Sequence[PreCommitted] = (),
    ) -> Sequence[str]:
        """Sweep, and check that nothing else is staged that was there before."""
        begun, generation = self._lake.clock.now, self._generation()
        swept = super().sweep(job, keep=keep, staying=staying, known=known)
        assert generation is not None, "sweeps follow a grant"
        self._lake.swept(begun, generation, {name for one in keep for name in TableFiles.of(one).names})
        return swept


@dataclass(frozen=True, kw_only=True)
class TableWriter(LakeSlotWriter):
    """Writes a file for each output partition."""

    folder = _FOLDER
    schema = _COLUMNS

    lake: "Lake"

    def storage(self) -> Storage:
        process = scheduler().running
        assert process is not None, "a task runs in a worker"
        return ModelStorage(self.lake, process)

    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[Hashable, pa.RecordBatch]]:
        for partition in sorted(set(batch["partition"].to_pylist())):
            yield partition, batch.filter(pc.equal(batch["partition"], partition))

    def parquet(self, file: Any, footer: list[pq.FileMetaData]) -> pq.ParquetWriter:
        return pq.ParquetWriter(file, self.schema, metadata_collector=footer, store_schema=False)

    def written(
        self, name: str, size: int, footer: pq.FileMetaData, partition: Hashable, with_nan: Set[str]
    ) -> TableFile:
        return TableFile(name=name, path=f"{_FOLDER}/{name}", size=size, records=footer.num_rows)
