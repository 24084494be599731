"""The smallest job: copies ``orders`` to ``orders-eur``, exactly once, until it is stopped with Ctrl-C.

    python examples/first_job.py

Needs a broker at localhost:9092 with both topics, of equally many partitions. There is no coordinator to start: without
an address the driver brings its own, and keeps its history in ``.onceward``.
"""

from onceward import CheckpointSettings, KafkaSink, KafkaSource, Pipeline

Pipeline(
    job="orders-eur",
    source=KafkaSource("localhost:9092", topics=["orders"], start="earliest"),
    transform=lambda df: df.where("value is not null"),  # lazy, DataFrame to DataFrame; leave out to copy
    sink=KafkaSink("localhost:9092", topic="orders-eur"),
    settings=CheckpointSettings(interval="1s"),
).run()
