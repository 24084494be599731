"""Sets apart what it cannot read: invoices that are no JSON, or have no price, go to a topic of their own.

    python examples/dead_letters.py

Needs a broker at localhost:9092 with the topics ``invoices``, ``invoices-eur`` and ``invoices-dead``. The same
checkpoint commits both outputs, so each invoice is in exactly one of them, once, whatever crashes.
"""

import json
from typing import Any

from onceward import DeadLetters, KafkaSink, KafkaSource, Pipeline, per_record


def in_euros(invoice: dict[str, Any]) -> dict[str, Any]:
    return {"key": invoice["key"], "value": f"{json.loads(invoice['value'])['cents'] / 100:.2f}"}


Pipeline(
    job="invoices",
    source=KafkaSource("localhost:9092", topics=["invoices"], start="earliest"),
    transform_batches=per_record(in_euros),
    sink=KafkaSink("localhost:9092", topic="invoices-eur"),
    dead_letters=DeadLetters(KafkaSink("localhost:9092", topic="invoices-dead")),
).run()
