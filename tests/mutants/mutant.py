"""What a mutant is, and what it means to catch one."""

from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tests.mutants.breaking import Break

__all__ = ["CLEAN", "Finding", "Hunt", "Mutant"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The first violation that a hunt met."""

    invariant: StrEnum
    text: str
    effort: str
    """What was looked at until then, for example ``17 seeds``."""


class Hunt(Protocol):
    """Looks for a violation in one bounded, reproducible way. Hashable: many mutants share one."""

    @property
    def name(self) -> str:
        """Who hunts, and where."""

    def find(self, breaks: Break) -> Finding | None:
        """The first violation of the product as ``breaks`` makes it; None when there is none within the bounds."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One bug."""

    name: str
    """What the product does now: a claim that must never be true."""
    hurts: str
    """Why that matters to somebody's data."""
    breaks: Break
    hunt: Hunt
    caught_by: tuple[StrEnum, ...]
    """The invariants of which one must be violated first. Another one would be luck, or a broken check."""


CLEAN: Break = nullcontext
"""Breaks nothing."""
