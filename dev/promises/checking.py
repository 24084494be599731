"""What a promise is, how one is reported as broken, and how all are checked in one call."""

import time
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol, TypeVar

__all__ = ["BrokenPromiseError", "Promise", "broken", "check_all", "eventually"]

_Case = TypeVar("_Case")
_Case_contra = TypeVar("_Case_contra", contravariant=True)
_Found = TypeVar("_Found")
_POLL_S = 0.02


class Promise(Protocol[_Case_contra]):
    """A function named as what it checks. It raises if that does not hold."""

    __name__: str

    def __call__(self, case: _Case_contra, /) -> None: ...


class BrokenPromiseError(AssertionError):
    """The source or the sink does not do what its interface promises to the driver."""


def broken(what: str) -> NoReturn:
    raise BrokenPromiseError(what)


def eventually(look: Callable[[], _Found], wanted: _Found, within: float) -> _Found:
    """Return what ``look`` finds: ``wanted`` as soon as it does, else what it finds after ``within`` seconds."""
    deadline = time.monotonic() + within
    while (found := look()) != wanted and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return found


def check_all(kind: str, promises: Sequence[Promise[_Case]], make: Callable[[], _Case]) -> None:
    """Check each promise on a case of its own. Raises ExceptionGroup with what breaks, each noted with its promise."""
    errors: list[Exception] = []
    for promise in promises:
        try:
            promise(make())
        except Exception as error:  # noqa: BLE001 - what it raises is the report
            error.add_note(f"{promise.__name__}: {(promise.__doc__ or '').strip()}")
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {len(promises)} promises of a {kind} are broken", errors)
