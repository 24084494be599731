"""The output that the demo's job must have written, computed independently from the data set in plain Python.

Shares no code with the job, Spark, the sources or the sinks: the definitions are repeated here. (From
``onceward.dev.demo`` it takes the messages that were fed, and topic names.)
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from onceward.dev.demo.flights import Message
from onceward.dev.demo.topics import DELAYED, REJECTED

__all__ = ["Expected", "Record", "expected_output", "output_of", "outputs"]

_INTEGERS = frozenset(
    "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay flight air_time distance hour "
    "minute".split()
)
_TEXTS = frozenset("carrier tailnum origin dest time_hour".split())
_NEEDED = ("time_hour", "carrier", "flight", "origin", "dest", "dep_delay", "arr_delay")


class Record(NamedTuple):
    """Key and value of one message, byte for byte."""

    key: bytes | None
    value: bytes | None


Expected: TypeAlias = Mapping[str, list[Record]]
"""Topic -> its records in input order."""


def expected_output(messages: Iterable[Message]) -> Expected:
    """Return exactly what the job must have written for ``messages``."""
    output: dict[str, list[Record]] = {DELAYED: [], REJECTED: []}
    for message in messages:
        if (routed := output_of(message)) is not None:
            topic, record = routed
            output[topic].append(record)
    return output


def output_of(message: Message) -> tuple[str, Record] | None:
    """Return topic and record for one message; None for a cancelled flight."""
    flight = _parsed(message.value)
    if flight is None:
        return REJECTED, Record(message.key, _rejection("unparsable", message.value))
    if flight.get("dep_time") is None:
        return None
    if any(flight.get(name) is None for name in _NEEDED):
        return REJECTED, Record(message.key, _rejection("incomplete", message.value))
    fields = {name: flight[name] for name in _NEEDED[:5]}
    fields["delay"] = flight["arr_delay"]
    fields["gained"] = flight["dep_delay"] - flight["arr_delay"]
    return DELAYED, Record(message.key, _json(fields))


def outputs(_topic: str, key: bytes | None, value: bytes | None) -> list[tuple[str, bytes | None, bytes | None]]:
    """Return the same for ``onceward verify --expected-by onceward.dev.demo.expected:outputs``."""
    routed = output_of(Message(row=0, key=key or b"", value=value))
    return [(routed[0], key, routed[1].value)] if routed is not None else []


def _parsed(value: bytes | None) -> dict[str, Any] | None:
    """Return the flight, or None unless the value is one JSON object whose known fields have the right types."""
    try:
        fields = json.loads(value or b"")
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    for name, field in fields.items():
        kind = int if name in _INTEGERS else str if name in _TEXTS else None
        if field is not None and kind is not None and type(field) is not kind:
            return None
    return fields


def _rejection(reason: str, value: bytes | None) -> bytes:
    return _json({"reason": reason} if value is None else {"reason": reason, "record": value.decode()})


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()
