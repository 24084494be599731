"""Records a run for the judge: reads the output while the job runs, polls the coordinator, and writes a history file.

The recorder reads from offset 0, however late it starts. What it could not see or ask is recorded as a gap, never
guessed.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from confluent_kafka import KafkaException

from onceward import KafkaCluster
from onceward.client.operators import MAX_LISTED, OperatorClient
from onceward.common.errors import OncewardError
from onceward.coordinator.service.state_dir import StateDirectory
from onceward.coordinator.store.errors import StoreUnusableError
from onceward.coordinator.store.store import Store
from onceward.operate.verify import (
    CheckpointReport,
    Content,
    Fed,
    History,
    Lane,
    Part,
    Visible,
    digest,
)
from onceward.operate.verify.asking import DECIDED_FOR, positions_of, report_of, reports_of_coordinator
from onceward.operate.verify.cluster import ClusterView, Raw, Reader, read_range
from onceward.protocol.values import JobName
from onceward.wire.rows import CheckpointSummary
from tests.support.history_files import HistoryWriter, read_history

__all__ = ["Expected", "Recorder"]

Expected: TypeAlias = Callable[[str, bytes | None, bytes | None], Sequence[tuple[str, bytes | None, bytes | None]]]
"""(input topic, key, value) -> the expected output records as (topic, key, value)."""

_ASK_S = 0.1
_NEWEST = 50
_POLL_S = 0.05
_READ_S = 0.03
"""The longest time between a record becoming visible and its being noted."""


class Recorder:
    """Record one job in one file, which must be new. A context manager; its threads run inside it.

    :param inputs: topics that the job reads. The recorder reads them at the end.
    :param outputs: topics that the job writes. Without ``expected``, each input record is copied to the first one.
    :param coordinator: address to poll while the job runs; the coordinator may be down for any time.
    """

    def __init__(
        self,
        cluster: str | KafkaCluster,
        *,
        job: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        file: Path,
        coordinator: str | None = None,
        expected: Expected | None = None,
        by_key: bool = True,
    ) -> None:
        self._view = ClusterView(KafkaCluster.of(cluster))
        self._job = JobName(job)
        self._inputs = list(inputs)
        self._outputs = list(outputs)
        self._file = file
        self._coordinator = coordinator
        self._expected = expected or (lambda _, key, value: [(outputs[0], key, value)])
        self._by_key = by_key
        self._writer = HistoryWriter(file, job)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._reader = Reader(self._view.cluster)
        self._threads = [threading.Thread(target=self._read, name="recorder-reads", daemon=True)]
        if coordinator is not None:
            self._threads.append(threading.Thread(target=self._ask, name="recorder-asks", daemon=True))
        self._stopped: dict[Part, str] = {}
        self._states: dict[int, str] = {}

    def __enter__(self) -> Self:
        starts = self._view.beginnings(self._outputs)
        self._gap_below(Part.SEEN, starts)
        self._reader.add(starts)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_threads()
        self._reader.close()
        self._writer.close()

    def finish(
        self,
        *,
        coordinator: str | None = None,
        store: str | None = None,
        state_dir: Path | None = None,
        whole_input: bool = False,
        limit_s: float = 60.0,
    ) -> History:
        """Wait until nothing holds readers back, stop the threads, and record the state at rest. Call it once.

        What is still open or unread after ``limit_s`` is recorded in that state. The checkpoints come from
        ``coordinator``, or from a ``store`` or ``state_dir`` that no coordinator uses any more.
        """
        limit = time.monotonic() + limit_s
        while not self._at_rest() and time.monotonic() < limit:
            time.sleep(_POLL_S)
        self._end_threads()
        ends = self._view.ends(self._outputs)
        behind = [
            f"{lane} at {self._reader.reached.get(lane, 0)} of {s}" for lane, _, s in ends if self._short(lane, s)
        ]
        if behind or Part.SEEN in self._stopped:
            self._writer.gap(
                Part.SEEN, self._stopped.get(Part.SEEN) or f"the reader stopped short: {', '.join(behind)}"
            )
        self._record_input()
        self._record_rest({lane: stable for lane, _, stable in ends})
        self._record_last(coordinator or self._coordinator, store, state_dir)
        for end in ends:
            self._writer.end(end)
        if self._view.ends(self._outputs) != ends:  # then checkpoints may be newer than the records that were read
            self._writer.gap(Part.REST, "the output changed while it was recorded: the job must be over")
        try:
            for name, state in self._view.open_transactions(self._job).items():
                self._writer.open(name, state)
        except KafkaException as error:
            self._writer.gap(Part.END, f"open transactions were not listed: {error}")
        self._writer.finish(whole_input=whole_input, by_key=self._by_key)
        return read_history(self._file)

    # -- while the job runs

    def _read(self) -> None:
        try:
            while not self._over.is_set():
                records = self._reader.read(_READ_S)
                at = time.time()
                with self._lock:
                    for one in records:
                        self._writer.seen(_visible(one, at))
        except Exception as error:  # noqa: BLE001 - on any error, what the reader held may not be written down
            self._stopped[Part.SEEN] = f"the reader died: {error!r}"

    def _ask(self) -> None:
        """Record decisions as the coordinator reports them. Retry while it is down or does not know the job yet."""
        assert self._coordinator is not None
        client = OperatorClient(self._coordinator, patience="100ms")
        while not self._over.wait(_ASK_S):
            try:
                reported = reports_of_coordinator(client, self._job, limit=_NEWEST, known=self._known)
                if len(reported) == _NEWEST:
                    reported = reports_of_coordinator(client, self._job, limit=MAX_LISTED, known=self._known)
            except OncewardError:
                client.close()
                client = OperatorClient(self._coordinator, patience="100ms")
            else:
                self._tell(reported)
        client.close()

    def _known(self, number: int, state: str) -> bool:
        return self._states.get(number) == state

    def _tell(self, reported: Sequence[CheckpointReport]) -> None:
        with self._lock:
            for one in reported:
                self._states[one.checkpoint] = one.state
                self._writer.reported(one)

    def _end_threads(self) -> None:
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    # -- at the end

    def _at_rest(self) -> bool:
        """True when no transaction is open, no reader is held back, and the concurrent reader has read everything."""
        if Part.SEEN in self._stopped:
            return True
        ends = self._view.ends(self._outputs)
        self._reader.add({lane: 0 for lane, _, _ in ends})  # partitions that were added since
        return all(high == stable and not self._short(lane, stable) for lane, high, stable in ends) and not (
            self._view.open_transactions(self._job)
        )

    def _short(self, lane: Lane, end: int) -> bool:
        return self._reader.reached.get(lane, 0) < end

    def _record_input(self) -> None:
        starts = self._view.beginnings(self._inputs)
        self._gap_below(Part.FED, starts)
        try:
            for one in read_range(self._view.cluster, starts, self._stable(self._inputs)):
                outputs = self._expected(one.lane.topic, one.key, one.value)
                contents = tuple(Content(topic, digest(key), digest(value)) for topic, key, value in outputs)
                self._writer.fed(Fed(one.lane, one.offset, contents))
        except KafkaException as error:
            self._writer.gap(Part.FED, f"the input was not read to its end: {error}")

    def _record_rest(self, ends: dict[Lane, int]) -> None:
        starts = self._view.beginnings(self._outputs)
        self._gap_below(Part.REST, starts)
        try:
            for one in read_range(self._view.cluster, starts, ends):
                self._writer.rest(_visible(one, 0.0))
        except KafkaException as error:
            self._writer.gap(Part.REST, f"the output was not read to its end: {error}")

    def _record_last(self, coordinator: str | None, store: str | None, state_dir: Path | None) -> None:
        try:
            for one in self._last_reported(coordinator, store, state_dir):
                self._writer.reported(one._replace(last=True))
        except (OncewardError, ValueError) as error:
            self._writer.gap(Part.COORDINATOR, f"it was not reported: {error}")

    def _last_reported(
        self, coordinator: str | None, store: str | None, state_dir: Path | None
    ) -> list[CheckpointReport]:
        if state_dir is not None:
            places = StateDirectory(state_dir)
            try:
                return _reported_by_store(places.store_url, self._job)
            except StoreUnusableError:  # its coordinator still runs
                coordinator = places.published()
        elif store is not None:
            return _reported_by_store(store, self._job)
        if coordinator is None:
            raise ValueError("neither a coordinator nor a store was named")
        with OperatorClient(coordinator) as client:
            return reports_of_coordinator(client, self._job, last=True)

    def _stable(self, topics: Sequence[str]) -> dict[Lane, int]:
        return {lane: stable for lane, _, stable in self._view.ends(topics)}

    def _gap_below(self, part: Part, starts: dict[Lane, int]) -> None:
        deleted = [f"{lane} below offset {start}" for lane, start in sorted(starts.items()) if start > 0]
        if deleted:
            self._writer.gap(part, f"deleted by retention: {', '.join(deleted)}")


def _visible(one: Raw, at: float) -> Visible:
    return Visible(one.lane, one.offset, Content(one.lane.topic, digest(one.key), digest(one.value)), at)


def _reported_by_store(url: str, job: JobName) -> list[CheckpointReport]:
    """Return all checkpoints in a store that no coordinator has open, by id, ascending.

    Raises StoreUnusableError when a coordinator has it open, and StoreDamagedError.
    """
    store = Store.open(url)
    try:
        return [
            report_of(one, _stored_ends(store, job, one), last=True) for one in reversed(store.checkpoints(job, 10**9))
        ]
    finally:
        store.close()


def _stored_ends(store: Store, job: JobName, one: CheckpointSummary) -> dict[Lane, int] | None:
    if one.state.value not in DECIDED_FOR:
        return None
    found = store.checkpoint(job, one.checkpoint)
    return (positions_of(found.snapshots) or None) if found is not None else None
