"""Decide what a batch of a Structured Streaming query is to a job. Pure; the coordinator checks documents with it.

Document ``spark-batch``, version 1: the newest batch of a job. ::

    {"query": "7a6e...", "batch": 41, "offsets": "9f2c...", "digest": "120:0f3a...", "location": "file:/data/totals"}

``query`` is the id that Spark keeps in the checkpointLocation. ``offsets`` is the SHA-256 of the batch's entry in
Spark's offset log, which holds the end offsets of all sources, the watermark and the time: a batch that Spark runs
again with the same entry reads the same input against the same state. ``digest`` is that of the batch's records, as
they were written. ``location`` is the checkpointLocation, for people: a copy elsewhere serves as well. Before the first
batch, ``batch`` is -1 and the others are null. ``in_parts``, true or left out, says that the program called the sink a
second time in the batch.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from onceward.protocol.values import SPARK_BATCH, Author, Document

__all__ = [
    "KIND",
    "Batch",
    "Found",
    "Place",
    "batch_of",
    "check_positions",
    "describe_difference",
    "describe_other_job",
    "describe_refusal",
    "describe_second_call",
    "digest_of",
    "place",
    "positions_after",
    "positions_before_the_first",
    "skip_to",
    "with_digest",
]

KIND = SPARK_BATCH
_VERSION = 1
_BEFORE_THE_FIRST = {"query": None, "batch": -1, "offsets": None, "digest": None, "location": None}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One batch of one query, with its input."""

    query: str
    number: int
    offsets: str
    """SHA-256 of its entry in Spark's offset log, in hex."""
    in_parts: bool = False
    """The program called the sink a second time in it: only what the first call got is written."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The batch that Spark runs now."""

    batch: Batch
    after: int
    """The batch before it that had a sink: number - 1, less when Spark repartitioned the state in between."""
    location: str
    """The query's checkpointLocation."""
    last: int | None = None
    """The batch that the sink got before in this run of the query."""
    skipped: bool = False
    """The program wants nothing of it written."""


class Place(StrEnum):
    """The place of a batch in the history of a job."""

    NEXT = "next"
    """It follows the newest completed batch, or is the first of the job: it is written."""
    COMPLETED = "completed"
    """It is the newest completed batch, run again by Spark with the same input: nothing but its state is written."""
    SECOND_CALL = "second call"
    """The newest completed batch, for which the sink is called again in the same run: this is recorded."""
    IN_PARTS = "in parts"
    """The newest completed batch, for which the sink was called twice, run again."""
    OTHER_QUERY = "other query"
    """Another query: its checkpointLocation was deleted, or is another one."""
    OLDER_COPY = "older copy"
    """A completed batch with other input, or an earlier one: the checkpointLocation is an older copy."""
    GAP = "gap"
    """Batches between the newest completed one and this one had another sink, or none."""


def place(base: Batch | None, found: Found, *, continue_at: int | None = None) -> Place:
    """Return the place of ``found``.

    :param base: the job's newest completed batch; None before the first.
    :param continue_at: the number of a batch with which a person wants the job to continue, whatever is missing before.
    """
    batch = found.batch
    if base is None:
        return Place.NEXT
    if batch.query != base.query:
        return Place.OTHER_QUERY
    if batch == base and not base.in_parts:
        return Place.COMPLETED
    if replace(batch, in_parts=False) == replace(base, in_parts=False):
        if not base.in_parts:
            return Place.SECOND_CALL
        return Place.COMPLETED if batch.in_parts or continue_at == batch.number else Place.IN_PARTS
    if batch.number <= base.number:
        return Place.OLDER_COPY
    return Place.NEXT if found.after == base.number or continue_at == batch.number else Place.GAP


def describe_refusal(job: str, where: Place, base: Batch, found: Found) -> str:
    """Explain why a batch of this place is not written, what that means for the data, and what to do."""
    batch = found.batch
    begin_again = (
        f"or, to begin again on purpose: onceward forget {job} --systems FILE --reason TEXT, then start it. The "
        "output keeps what was written, and the query writes again whatever it reads again"
    )
    accept = f"To continue without what is missing, start once with continue_at={batch.number}"
    match where:
        case Place.OTHER_QUERY:
            what = (
                f"Spark runs batch {batch.number} of query {batch.query}, and job {job} has completed batch "
                f"{base.number} of query {base.query}: the checkpointLocation was deleted, or is another one"
            )
            remedy = f"Start the query with the checkpointLocation of query {base.query}; {begin_again}"
        case Place.OLDER_COPY:
            differs = "with other input" if batch.number == base.number else f"after batch {base.number} is completed"
            what = (
                f"Spark runs batch {batch.number} of query {batch.query} {differs}: the checkpointLocation is an older "
                f"copy than the history of job {job}, or the job was not restored with it"
            )
            remedy = (
                f"Put the newest checkpointLocation back, or restore the checkpoint of job {job} that has batch "
                f"{batch.number - 1} (onceward restore {job} --from ID --reason TEXT; output after it repeats); "
                f"{begin_again}"
            )
        case Place.GAP if found.last == base.number:
            missing = _batches(base.number + 1, batch.number - 1)
            what = (
                f"Spark runs batch {batch.number} of query {batch.query}, and the function that is passed to "
                f"foreachBatch did not call the sink of job {job} for {missing}, as one that returns early does. "
                f"Spark does not run {missing} again"
            )
            remedy = (
                "Call the sink in every batch, also in an empty one, or sink.skip(batch) where nothing is to be "
                f"written. {accept}"
            )
        case Place.GAP:
            what = (
                f"Spark runs batch {batch.number} of query {batch.query}, and job {job} has completed batch "
                f"{base.number}: the batches between them ran with another sink, or without a call of this one, or the "
                "job was restored to an older checkpoint without its checkpointLocation"
            )
            remedy = (
                f"Put back a checkpointLocation that ends with batch {base.number} or {base.number + 1}; "
                f"{begin_again}. {accept}"
            )
        case Place.IN_PARTS:
            what = (
                f"Spark runs batch {batch.number} of query {batch.query} again, and the function that is passed to "
                f"foreachBatch called the sink of job {job} twice in it: what the first call got is in the output, the "
                "rest is not"
            )
            remedy = (
                "Call the sink once in each batch: union the parts, or give each its own job and sink. Then restore "
                f"the checkpoint before the batch (onceward restore {job} --from ID --reason TEXT): the whole batch is "
                f"written, and what the first call wrote is there twice. {accept}"
            )
        case Place.NEXT | Place.COMPLETED | Place.SECOND_CALL:
            raise ValueError(f"a batch that is {where.value} is not refused")
        case _:
            assert_never(where)
    return f"{what}. Nothing of the batch was written: its records could be in the output twice, or never. {remedy}."


def _batches(first: int, last: int) -> str:
    return f"batch {first}" if first == last else f"batches {first} to {last}"


def describe_other_job(job: str, owners: Collection[str], found: Found) -> str:
    """Explain that the checkpointLocation is that of another job, and what to do. ``owners``: job and store."""
    number = found.batch.number
    return (
        f"The checkpointLocation {found.location} was used by {' and '.join(sorted(owners))} (job@store), not by job "
        f"{job} with this store. Batch {number}, which Spark runs now, may be in the output already. Nothing was "
        "written. Use that job and its store, or another checkpointLocation. If onceward checkpoints JOB shows that "
        f"the other job has not completed batch {number}, start once with continue_at={number}: the location then "
        f"belongs to job {job}."
    )


def describe_second_call(job: str, number: int) -> str:
    """Explain that the program called the sink twice in a batch, and what to do."""
    return (
        f"The function that is passed to foreachBatch called the sink of job {job} a second time in batch {number}. "
        "What the first call got is in the output, what this one got is not, and the next start halts at this batch. "
        "Union the parts before one call, or give each its own job and sink."
    )


def describe_difference(job: str, batch: Batch, wrote: str, made: str) -> str:
    """Explain that a settled batch has other records when it runs again, and what to do. Both are digests."""
    return (
        f"Batch {batch.number} of job {job} is in the output, and Spark ran it again to write its state: it has other "
        f"records now ({made}, was {wrote}). The program was changed, or the query draws at random, reads the clock, "
        "joins a table that has changed, or depends on the order of its input. The output keeps what was written, "
        "once; a state of other records would not agree with it. Nothing more was written. If the program was "
        "changed, start the former one until this batch is over. Else start the query again: an order may come out as "
        f"before. If it cannot, pass allow_different_state={batch.number}, which accepts this batch alone and "
        "continues with the state of the last run"
    )


def positions_before_the_first() -> Document:
    """Return the positions of a job that has no batch yet."""
    return Document(kind=KIND, version=_VERSION, body=dict(_BEFORE_THE_FIRST))


def positions_after(found: Found) -> Document:
    """Return the positions of a job whose newest batch is ``found``, which has not run yet."""
    batch = found.batch
    body = {
        "query": batch.query,
        "batch": batch.number,
        "offsets": batch.offsets,
        "digest": "",
        "location": found.location,
        **({"in_parts": True} if batch.in_parts else {}),
    }
    return Document(kind=KIND, version=_VERSION, body=body)


def with_digest(positions: Document, digest: str) -> Document:
    """Return the positions of a batch that has run. ``digest``: that of its records."""
    return replace(positions, body={**positions.body, "digest": digest})


def digest_of(positions: Document) -> str:
    """Return the digest in positions that :func:`batch_of` has read; empty before the first batch."""
    return str(positions.body["digest"] or "")


def batch_of(positions: Document) -> Batch | None:
    """Return the newest batch in ``positions``; None before the first one. Raises ValueError with the reason."""
    if positions.kind != KIND:
        raise ValueError(f"the document is of kind {positions.kind!r}, and a stream reads {KIND!r}")
    if positions.version != _VERSION:
        raise ValueError(f"the document has version {positions.version}, this program knows version {_VERSION}")
    body = dict(positions.body)
    if body == _BEFORE_THE_FIRST:
        return None
    query, number, offsets, digest, location = (body.get(name) for name in _BEFORE_THE_FIRST)
    texts = all(isinstance(text, str) for text in (query, offsets, digest, location))
    if not texts or not query or not offsets:
        raise ValueError(f"the document is damaged: {body!r}")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"the document is damaged: batch {number!r} is not a number from 0")
    return Batch(query=query, number=number, offsets=offsets, in_parts=body.get("in_parts") is True)


def check_positions(document: Document, base: Document | None, author: Author) -> None:
    """Validate positions before the coordinator accepts them.

    Raises ValueError for an unknown version or content, another query than the base's, and for a batch that is not
    the base's or a later one.
    """
    after = batch_of(document)
    before = batch_of(base) if base is not None else None
    if before is None:
        return
    if after is None:
        raise ValueError(f"they are before the first batch, the base's at batch {before.number}")
    if after.query != before.query:
        raise ValueError(f"they are of query {after.query}, the base's of {before.query}")
    if after not in (before, replace(before, in_parts=True)) and after.number <= before.number:
        raise ValueError(f"they are at batch {after.number}, the base's at batch {before.number}")


def skip_to(document: Document, topic: str, partition: int, offset: int) -> tuple[Document, int]:
    """Refuse to skip input. Raises ValueError with the reason."""
    raise ValueError(
        "Spark keeps which input a Structured Streaming query has read, in its checkpointLocation. To go past input "
        "that is gone, start the query with its source's own option, for example failOnDataLoss=false"
    )
