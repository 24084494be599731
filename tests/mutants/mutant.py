"""A mutant, a hunt, and what counts as catching one."""

from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tests.mutants.breaking import Break

__all__ = ["CLEAN", "Finding", "Hunt", "Mutant"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The first violation that a hunt found."""

    invariant: StrEnum
    text: str
    effort: str
    """How much was searched until then, for example ``17 seeds``."""


class Hunt(Protocol):
    """Searches for a violation in one bounded, reproducible way. Hashable: many mutants share one."""

    @property
    def name(self) -> str:
        """What hunts, and where."""

    def find(self, breaks: Break) -> Finding | None:
        """The first violation of the product as broken by ``breaks``; None if there is none within the bounds."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One bug."""

    name: str
    """What the broken product does: a statement that must never be true."""
    hurts: str
    """Why this matters for the user's data."""
    breaks: Break
    hunt: Hunt
    caught_by: tuple[StrEnum, ...]
    """The first violated invariant must be one of these. Another one would be luck, or a broken check."""


CLEAN: Break = nullcontext
"""Breaks nothing."""
