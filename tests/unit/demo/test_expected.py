"""The demo's messages and their expected output."""

import json
import subprocess
import sys
from collections import Counter

import pytest

from onceward.dev.demo.expected import Record, output_of
from onceward.dev.demo.flights import Damage, Message, damage_of, messages
from onceward.dev.demo.topics import DELAYED, REJECTED

FLOWN = {
    "time_hour": "2013-01-01T10:00:00Z",
    "carrier": "UA",
    "flight": 1545,
    "origin": "EWR",
    "dest": "IAH",
    "dep_time": 517,
    "dep_delay": 2,
    "arr_delay": 11,
}
OUTPUT = (
    b'{"time_hour":"2013-01-01T10:00:00Z","carrier":"UA","flight":1545,"origin":"EWR","dest":"IAH",'
    b'"delay":11,"gained":-9}'
)


def message(**changes: object) -> Message:
    """Return a message of a flight with some fields changed."""
    return Message(0, b"UA", json.dumps({**FLOWN, **changes}).encode())


def rejected(reason: str, one: Message) -> tuple[str, Record]:
    value = json.dumps({"reason": reason, "record": (one.value or b"").decode()}, separators=(",", ":"))
    return REJECTED, Record(one.key, value.encode())


def test_a_flown_flight_gives_its_delay() -> None:
    assert output_of(message()) == (DELAYED, Record(b"UA", OUTPUT))


def test_a_flight_without_departure_is_dropped() -> None:
    assert output_of(message(dep_time=None)) is None
    assert output_of(message(dep_time=None, dest=None)) is None


@pytest.mark.parametrize("field", [name for name in FLOWN if name != "dep_time"])
def test_a_departed_flight_without_a_needed_field_is_incomplete(field: str) -> None:
    one = message(**{field: None})
    assert output_of(one) == rejected("incomplete", one)


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b"17", b'{"dep_time":517', b'{"arr_delay":"late"}', b'{"dep_time":null,"flight":1.5}']
)
def test_an_object_of_wrong_types_is_unparsable(value: bytes) -> None:
    one = Message(0, b"UA", value)
    assert output_of(one) == rejected("unparsable", one)


def test_a_message_without_a_value_is_unparsable() -> None:
    assert output_of(Message(0, b"UA", None)) == (REJECTED, Record(b"UA", b'{"reason":"unparsable"}'))


def test_every_kind_of_damage_occurs_as_named() -> None:
    damaged = {damage: [] for damage in Damage}  # type: dict[Damage, list[Message]]
    for one in messages(6000):
        if (damage := damage_of(one.row)) is not None:
            damaged[damage].append(one)
        else:
            assert len(json.loads(one.value or b"")) == 19
    assert Counter({damage: len(found) for damage, found in damaged.items()}) == {
        Damage.CUT: 6,
        Damage.WRONG_TYPE: 6,
        Damage.MISSING: 6,
        Damage.EMPTY: 2,
    }
    assert all("dest" not in json.loads(one.value or b"") for one in damaged[Damage.MISSING])
    assert all(json.loads(one.value or b"")["arr_delay"] == "late" for one in damaged[Damage.WRONG_TYPE])
    assert all(one.value is None for one in damaged[Damage.EMPTY])
    assert all((output_of(one) or ("",))[0] == REJECTED for one in damaged[Damage.CUT])


def test_messages_are_the_same_every_time() -> None:
    assert list(messages(500)) == list(messages(500))


def test_the_check_shares_no_code_with_the_job() -> None:
    script = (
        "import sys, onceward.dev.demo.check\n"
        "ours = ('onceward.sources', 'onceward.sinks', 'onceward.connections', 'pyspark',"
        " 'onceward.driver', 'onceward.client', 'onceward.protocol',"
        " 'onceward.coordinator.service', 'onceward.dev.demo.job')\n"
        "print([name for name in sys.modules if name.startswith(ours)])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
