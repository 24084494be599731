"""Converts payments from dollars to euros with a function on Arrow batches, the fastest kind of transform.

    python examples/batches.py

Needs a broker at localhost:9092 with the topics ``payments`` and ``payments-eur``. Their values are amounts as text,
for example ``12.50``.
"""

from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from onceward import KafkaSink, KafkaSource, Pipeline

MONEY = pa.decimal128(18, 2)
EUROS_PER_DOLLAR = pa.scalar(Decimal("0.92"))


def to_euros(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in the Python process that reads and writes, once per task. It must consume all batches.

    An exception fails the checkpoint, and the job tries it again. So a value that is not a number stops this job's
    progress: routing.py shows what to do with such records.
    """
    for batch in batches:
        dollars = batch.column("value").cast(pa.string()).cast(MONEY)
        euros = pc.round(pc.multiply(dollars, EUROS_PER_DOLLAR), ndigits=2).cast(MONEY)
        yield pa.RecordBatch.from_pydict({"key": batch.column("key"), "value": euros.cast(pa.string())})


Pipeline(
    job="payments-eur",
    # the columns that the function uses: without the list, all would be read
    source=KafkaSource("localhost:9092", topics=["payments"], start="earliest", columns=("key", "value")),
    transform_batches=to_euros,
    sink=KafkaSink("localhost:9092", topic="payments-eur"),
).run()
