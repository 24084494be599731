"""Read a job's checkpoints from a coordinator."""

from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from datetime import datetime

from onceward.client.operators import MAX_LISTED, OperatorClient
from onceward.common.errors import ConfigurationError, RefusedError
from onceward.operate.verify.history import CheckpointReport, Lane
from onceward.protocol.values import JobName, JsonObject, ParticipantName, Snapshot
from onceward.wire.rows import CheckpointSummary

__all__ = ["DECIDED_FOR", "origin_of", "positions_of", "report_of", "reports_of_coordinator"]

DECIDED_FOR = ("completed", "settled")
_OFFSETS = {("kafka-positions", 1), ("kafka-positions", 2)}
"""Kinds and versions of positions; version 2 adds leader epochs, which do not matter here."""
_BATCHES = {("spark-batch", 1)}
"""Positions without offsets: Spark keeps those of a Structured Streaming query."""


def positions_of(snapshots: Mapping[ParticipantName, Snapshot]) -> dict[Lane, int]:
    """Return the next offset to read by input partition; none for a Structured Streaming query. Raises
    ConfigurationError for positions that cannot be read."""
    found: dict[Lane, int] = {}
    for body in _with_offsets(snapshots):
        for topic, one in body["topics"].items():
            found.update({Lane(topic, int(number)): cursor["next"] for number, cursor in one["partitions"].items()})
    return found


def _with_offsets(snapshots: Mapping[ParticipantName, Snapshot]) -> list[JsonObject]:
    documents = [one.positions for one in snapshots.values() if one.positions is not None]
    for document in documents:
        if (document.kind, document.version) not in _OFFSETS | _BATCHES:
            raise ConfigurationError(
                f"Positions of kind {document.kind!r} and version {document.version} cannot be read. The job reads "
                "something else than Kafka, or a newer Onceward runs it. Nothing was judged. Only jobs that read Kafka "
                "can be verified, by a version that is not older."
            )
    return [document.body for document in documents if (document.kind, document.version) in _OFFSETS]


def origin_of(snapshots: Mapping[ParticipantName, Snapshot]) -> tuple[str, Mapping[str, str]]:
    """Return the ids of the cluster and of each topic that the positions refer to. Raises as `positions_of`."""
    documents = _with_offsets(snapshots)
    topics = {name: str(topic["id"]) for body in documents for name, topic in body["topics"].items()}
    return next((str(body["cluster_id"]) for body in documents), ""), topics


def reports_of_coordinator(
    client: OperatorClient,
    job: JobName,
    *,
    limit: int = MAX_LISTED,
    known: Callable[[int, str], bool] = lambda _number, _state: False,
    cache: MutableMapping[int, dict[Lane, int] | None] | None = None,
    last: bool = False,
) -> list[CheckpointReport]:
    """Return the checkpoints by id, ascending, without those already ``known`` in their state.

    ``cache``: positions read before, by checkpoint; they never change. Raises OncewardError when the coordinator does
    not answer or does not know the job.
    """
    listed = client.checkpoints(job, limit)
    reports = []
    for one in reversed(listed):
        if known(one.checkpoint, one.state.value):
            continue
        ends = None
        if one.state.value in DECIDED_FOR:
            ends = cache.get(one.checkpoint) if cache is not None else None
            if ends is None:
                with suppress(RefusedError):  # retention has removed it since it was listed
                    ends = positions_of(client.checkpoint(job, one.checkpoint).snapshots) or None
            if cache is not None:
                cache[one.checkpoint] = ends
        reports.append(report_of(one, ends, last))
    return reports


def report_of(one: CheckpointSummary, ends: dict[Lane, int] | None, last: bool) -> CheckpointReport:
    """Return what a listed checkpoint says; ``ends`` are its positions."""
    return CheckpointReport(
        checkpoint=one.checkpoint,
        base=one.base,
        generation=one.generation,
        kind=one.kind.value,
        state=one.state.value,
        ends=ends,
        decided_at=_seconds(one.decided_at),
        last=last,
    )


def _seconds(at: datetime | None) -> float:
    return at.timestamp() if at is not None else 0.0
