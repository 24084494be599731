"""Converters between a dataclass and the message with the same fields. The types of the fields say how to carry them.

One expression is compiled for each direction, as `dataclasses` does for ``__init__``: it is as fast as one that is
written by hand. A field that is missing on one side is an error at import.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

from onceward.protocol.values import MAX_ID, CheckpointId, Generation, JobName, ParticipantName, RequestId
from onceward.wire import enums, malformed
from onceward.wire.text import text_to_wire

__all__ = ["By", "Codec", "carry", "decoder", "microseconds"]

T = TypeVar("T")
M = TypeVar("M", bound=Message)
_Convert = Callable[[Any], Any] | None
"""None carries the value as it is."""

_MICROSECOND = timedelta(microseconds=1)
_carried: dict[Any, tuple[_Convert, _Convert]] = {
    one.enum: (one.to_wire, one.from_wire) for one in vars(enums).values() if isinstance(one, enums.ClosedEnum)
}


def carry(value: Any, to_wire: _Convert, from_wire: _Convert) -> None:
    """Let other codecs carry values of this type by these converters, which are written by hand."""
    _carried[value] = to_wire, from_wire


def microseconds(duration: timedelta) -> int:
    """Within what is taken: a clock that was set, or a sink without a timeout, must not fail the call that reports."""
    return min(max(duration // _MICROSECOND, 0), MAX_ID)


@dataclass(frozen=True, kw_only=True)
class By:
    """How to carry one field, as far as its type does not say it."""

    name: str = ""
    """Of the message's field."""
    to_wire: _Convert = None
    from_wire: _Convert = None
    """May raise MalformedError."""
    required: bool = False
    """Refuse a message without it."""


class Codec(Generic[T, M]):
    """Converts values of one dataclass. Each of its fields must be in the message, and each field of the message in it.

    :param checks: refuse numbers and texts beyond the wire's limits. False for listings: people see what is there.
    :param without: fields of the dataclass that are not in the message.
    """

    to_wire: Callable[[T], M]
    from_wire: Callable[[M], T]
    """Raises MalformedError."""

    def __init__(
        self, value: type[T], message: type[M], *, checks: bool = True, without: Sequence[str] = (), **others: By
    ) -> None:
        there, back, names = _expressions(value, message, others, checks=checks, without=without)
        self.to_wire = eval(f"lambda v: _message({', '.join(there)})", names)
        self.from_wire = eval(f"lambda m: _value({', '.join(back)})", names)
        carry(value, self.to_wire, self.from_wire)


def decoder(event: type[T], message: type[M], *, unread: Sequence[str] = (), **others: By) -> Callable[[M, float], T]:
    """Return a function that makes an event of a request and of the time, its ``now``. Raises MalformedError.

    :param unread: fields of the message that are not in the event, besides ``job``.
    """
    _, back, names = _expressions(event, message, others, without=("now",), unread=("job", *unread))
    return eval(f"lambda m, now: _value({', '.join(['now=now', *back])})", names)  # type: ignore[no-any-return]


def _expressions(
    value: type,
    message: type[Message],
    others: dict[str, By],
    *,
    checks: bool = True,
    without: Sequence[str] = (),
    unread: Sequence[str] = (),
) -> tuple[list[str], list[str], dict[str, Any]]:
    """Return the arguments of the message made from ``v``, those of the value made from ``m``, and the names in both.
    Raises TypeError when a field is on one side only."""
    known: dict[str, Any] = dict(message.DESCRIPTOR.fields_by_name)
    names: dict[str, Any] = {"_value": value, "_message": message, "_require": _require}
    there, back = [], []
    hints = get_type_hints(value)
    for field in (one.name for one in fields(value) if one.name not in without):
        optional = NoneType in get_args(hints[field])
        hint = next(one for one in get_args(hints[field]) if one is not NoneType) if optional else hints[field]
        by = others.pop(field, By())
        name = by.name or _name(field, hint)
        if name not in known:
            raise TypeError(f"{value.__name__}.{field}: {message.__name__} has no field {name}")
        to_wire, from_wire = by.to_wire, by.from_wire
        if to_wire is None or from_wire is None:
            usual = _converters(hint, name, checks)
            to_wire, from_wire = to_wire or usual[0], from_wire or usual[1]
        names |= {f"to_{name}": to_wire, f"from_{name}": from_wire}
        encoded = f"v.{field}" if to_wire is None else f"to_{name}(v.{field})"
        decoded = f"m.{name}" if from_wire is None else f"from_{name}(m.{name})"
        if by.from_wire is None and isinstance(from_wire, partial) and from_wire.keywords:  # called as by hand
            names[f"from_{name}"], decoded = from_wire.func, f"from_{name}(m.{name}, {name!r})"
        present = known.pop(name).has_presence
        if by.required:
            decoded = f"_require(m, {name!r}) and {decoded}"
        elif optional and present:
            encoded = f"{encoded} if v.{field} is not None else None"
            decoded = f"{decoded} if m.HasField({name!r}) else None"
        elif optional and hint is not datetime and by.from_wire is None:
            raise TypeError(f"{value.__name__}.{field}: {message.__name__}.{name} cannot be absent")
        there.append(f"{name}={encoded}")
        back.append(f"{field}={decoded}")
    if others or known.keys() != set(unread):
        raise TypeError(f"{value.__name__} and {message.__name__} differ: {sorted({*known, *others} ^ {*unread})}")
    return there, back, names


def _require(message: Message, name: str) -> bool:
    if not message.HasField(name):
        raise malformed.MalformedError(f"{name}: missing")
    return True


def _name(field: str, hint: Any) -> str:
    """The message's field has the unit in its name."""
    if hint is float and field.endswith("_s"):
        return f"{field[:-2]}_us"
    return field + {datetime: "_ms", timedelta: "_us"}.get(hint, "")


def _converters(hint: Any, name: str, checks: bool) -> tuple[_Convert, _Convert]:
    arguments = get_args(hint)
    if hint in _carried:
        return _carried[hint]
    if get_origin(hint) is Mapping:
        (_, key), (there, back) = (_converters(argument, name, checks) for argument in arguments)
        return partial(_mapped, str, there), partial(_mapped, key, back)
    if get_origin(hint) in (tuple, Sequence):
        there, back = _converters(arguments[0], name, checks)
        return there and partial(map, there), tuple if back is None else partial(_tuple, back)
    if hint is float and name.endswith("_us"):
        return _from_seconds, partial(_seconds, _converters(timedelta, name, checks)[1])
    there, unchecked, check = _CHECKS[hint]
    if hint is CheckpointId and name == "checkpoint":  # everywhere else 0 stands for none
        check = malformed.as_checkpoint
    return there, partial(check, field=name) if checks else unchecked


def _mapped(key: Any, convert: Any, values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key(name): value if convert is None else convert(value) for name, value in values.items()}


def _tuple(convert: Any, values: Any) -> tuple[Any, ...]:
    return tuple(map(convert, values))


def _from_seconds(seconds: float) -> int:
    return min(max(round(seconds * 1e6), 0), MAX_ID)


def _seconds(decode: Any, number: int) -> float:
    duration: timedelta = decode(number)
    return duration.total_seconds()


def _duration(number: int) -> timedelta:
    return timedelta(microseconds=number)


def _milliseconds(time: datetime | None) -> int:
    return round(time.timestamp() * 1000) if time is not None else 0


def _time(milliseconds: int) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None


_carried |= {
    bool: (None, None),
    datetime: (_milliseconds, _time),
    JobName: (None, malformed.as_job),
    ParticipantName: (None, malformed.as_participant),
}
_CHECKS: dict[Any, tuple[_Convert, _Convert, Callable[..., Any]]] = {
    str: (text_to_wire, None, malformed.as_text),
    int: (None, None, malformed.as_count),
    float: (None, None, malformed.as_rate),
    timedelta: (microseconds, _duration, malformed.as_microseconds),
    Generation: (None, None, malformed.as_generation),
    CheckpointId: (None, None, malformed.as_base),
    RequestId: (None, None, malformed.as_token),
}
"""To the wire, from the wire without and with a check, which gets the name of the field."""
