"""Find the part of a checkpoint's input that makes it fail, by running halves of it."""

from collections.abc import Callable, Sequence

from onceward.coordinator.protocol.values import JsonObject

__all__ = ["Narrowing", "narrowed"]

Splits = Sequence[JsonObject]


def narrowed(
    splits: Splits,
    *,
    halves: Callable[[Splits], tuple[Splits, Splits] | None],
    fails: Callable[[Splits], bool],
    may_go_on: Callable[[], bool],
) -> Splits:
    """Return the smallest part of ``splits`` that fails on its own.

    Each step runs half as much as the step before, so all steps together run at most twice the failed input. Returns
    ``splits`` unchanged when no half fails: the failure has passed, or needs records of both halves.
    """
    while (parts := halves(splits)) is not None:
        for part in parts:
            if not may_go_on():
                return splits
            if fails(part):
                splits = part
                break
        else:
            return splits
    return splits


class Narrowing:
    """Narrowing for one job: remembers the last result, so that a repeated failure is first looked for there."""

    def __init__(self) -> None:
        self._found: Splits = ()

    def find(
        self,
        splits: Splits,
        *,
        halves: Callable[[Splits], tuple[Splits, Splits] | None],
        fails: Callable[[Splits], bool],
        may_go_on: Callable[[], bool],
    ) -> Splits:
        """See :func:`narrowed`."""
        if not (self._found and may_go_on() and fails(self._found)):
            self._found = narrowed(splits, halves=halves, fails=fails, may_go_on=may_go_on)
        return self._found
