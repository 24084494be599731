"""Find the part of a checkpoint's input that makes it fail, by running halves of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onceward.protocol.values import JsonObject

__all__ = ["Failure", "Narrowing", "narrowed"]

Splits = Sequence[JsonObject]


@dataclass(frozen=True)
class Failure:
    """What was run, and the error that it raised."""

    splits: Splits
    error: Exception


def narrowed(
    failure: Failure,
    *,
    halves: Callable[[Splits], tuple[Splits, Splits] | None],
    run: Callable[[Splits], Exception | None],
    may_go_on: Callable[[], bool],
) -> Failure:
    """Return the failure of the smallest part of the splits that fails on its own, with the error of that part.

    Each step runs half as much as the step before, so all steps together run at most twice the failed input. Returns
    ``failure`` unchanged when no half fails: the failure has passed, or needs records of both halves.
    """
    while (parts := halves(failure.splits)) is not None:
        for part in parts:
            if not may_go_on():
                return failure
            error = run(part)
            if error is not None:
                failure = Failure(part, error)
                break
        else:
            return failure
    return failure


class Narrowing:
    """Narrowing for one job: remembers the last result, so that a repeated failure is first looked for there."""

    def __init__(self) -> None:
        self._found: Splits = ()

    def find(
        self,
        failure: Failure,
        *,
        halves: Callable[[Splits], tuple[Splits, Splits] | None],
        run: Callable[[Splits], Exception | None],
        may_go_on: Callable[[], bool],
    ) -> Failure:
        """See :func:`narrowed`."""
        error = run(self._found) if self._found and may_go_on() else None
        if error is not None:
            return Failure(self._found, error)
        found = narrowed(failure, halves=halves, run=run, may_go_on=may_go_on)
        self._found = found.splits
        return found
