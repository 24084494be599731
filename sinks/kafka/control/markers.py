"""How transactions ended, read from the output itself (docs/protocol.md#outcomes).

Each partition that a transaction wrote to gets a control marker, COMMIT or ABORT, after its records. A coordinator
forgets an ended transaction when the next one with its id begins, and a receipt can expire or be deleted; a marker
remains in the log as long as the records. A pair (producer id, epoch) belongs to one transaction forever, so the
producer's first marker after records of the pair ends that transaction and no other.

The search reads the log backwards from its end. It is costly, and used only if nothing else proves the outcome.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.logs import Log, PartitionId, UnreadableError

__all__ = ["READ_LIMIT", "LogEnding", "LogProof", "read_endings"]

READ_LIMIT = 256 * 1024 * 1024
"""Bytes searched per partition. After a job's newest completed checkpoint only other programs add records, so the
job's records are near the end."""

_FIRST_WINDOW = 1_000
"""Offsets in the first window; each further window, which precedes the last one, has eight times as many."""
_WIDER = 8

_Pair = tuple[int, int]
"""Producer id and epoch."""


class LogEnding(StrEnum):
    """What the output shows about a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    AGAIN = "again"
    """A partition did not answer."""
    UNKNOWN = "unknown"
    """Its records, or the marker after them, cannot be found."""


@dataclass(frozen=True, kw_only=True)
class LogProof:
    """What the output shows, and where, as text."""

    ending: LogEnding
    detail: str
    aborted: bool = False
    """Whether a partition shows ABORT, whatever the others show."""


def read_endings(control: ControlPlane, handles: Iterable[KafkaCommittable]) -> dict[str, LogProof]:
    """Return how each transaction ended, by transactional id. Changes nothing.

    One COMMIT marker proves a commit, because none is written before the coordinator has decided to commit. An abort
    counts as proved only if every partition shows it: a tool that cleans up one partition can write a single ABORT
    marker. Then the records in that partition are lost, the others are not.
    """
    wanted: dict[PartitionId, list[KafkaCommittable]] = {}
    reported: dict[str, list[LogProof]] = {}
    for handle in handles:
        reported[handle.transaction.id] = []
        for topic, written in handle.topics.items():
            for number in written.partitions:
                wanted.setdefault((topic, number), []).append(handle)
    for place, writers in sorted(wanted.items()):
        pairs = {_pair(handle): handle.transaction.id for handle in writers}
        found = _search(control, place, pairs)
        for pair, name in pairs.items():
            reported[name].append(found[pair])
    return {name: _together(proofs) for name, proofs in reported.items()}


def _together(proofs: Collection[LogProof]) -> LogProof:
    for ending in (LogEnding.AGAIN, LogEnding.COMMITTED, LogEnding.UNKNOWN, LogEnding.ABORTED):
        found = next((proof for proof in proofs if proof.ending is ending), None)
        if found is not None:
            aborted = [proof.detail for proof in proofs if proof.ending is LogEnding.ABORTED]
            detail = found.detail if ending is LogEnding.ABORTED else "; ".join((found.detail, *aborted))
            return LogProof(ending=ending, detail=detail, aborted=bool(aborted))
    return LogProof(ending=LogEnding.UNKNOWN, detail="it wrote to no partition")


def _pair(handle: KafkaCommittable) -> _Pair:
    return handle.transaction.producer_id, handle.transaction.epoch


def _search(control: ControlPlane, place: PartitionId, pairs: Collection[_Pair]) -> dict[_Pair, LogProof]:
    """Search one partition window by window, backwards from its end."""
    name = f"{place[0]}-{place[1]}"
    producers = {producer_id for producer_id, _ in pairs}
    markers: dict[int, tuple[int, bool]] = {}
    """Producer id -> offset of its first marker in the windows searched so far, and whether it is a COMMIT."""
    found: dict[_Pair, LogProof] = {}
    try:
        log = Log(control, place, limit=READ_LIMIT)
        upper, window = log.end, _FIRST_WINDOW
        while upper > log.first and len(found) < len(pairs):
            lower = max(log.first, upper - window)
            batches = [batch for batch in log.read(lower, upper) if batch.producer_id in producers]
            for batch in reversed(batches):
                pair = (batch.producer_id, batch.epoch)
                if batch.commit is not None:
                    markers[batch.producer_id] = (batch.last_offset, batch.commit)
                elif pair in pairs and pair not in found:
                    found[pair] = _reported(name, markers.get(batch.producer_id), batch.records)
            upper, window = lower, window * _WIDER
        gone = f"{name}: its records are not in the log, which begins at offset {log.first}"
        missing = LogProof(ending=LogEnding.UNKNOWN, detail=gone)
    except UnreadableError as error:
        ending = LogEnding.AGAIN if error.again else LogEnding.UNKNOWN
        missing = LogProof(ending=ending, detail=f"{name} cannot be read: {error}")
    return {pair: found.get(pair, missing) for pair in pairs}


def _reported(name: str, marker: tuple[int, bool] | None, records: int) -> LogProof:
    if marker is None:
        return LogProof(ending=LogEnding.UNKNOWN, detail=f"{name}: no marker is behind its records")
    offset, commit = marker
    if commit:
        return LogProof(ending=LogEnding.COMMITTED, detail=f"{name}: the marker at offset {offset} is COMMIT")
    behind = f" behind {records} records" if records else ""
    return LogProof(ending=LogEnding.ABORTED, detail=f"{name}: the marker at offset {offset} is ABORT{behind}")
