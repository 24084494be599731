"""The judge's verdict: each property separately, with its evidence. Unknown is never a pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

__all__ = ["Breach", "Grade", "Property", "Result", "Verification"]


class Grade(StrEnum):
    PASS = "PASS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    """Something necessary was not recorded, or allows more than one reading."""


class Property(StrEnum):
    """What is promised to a ``read_committed`` reader of the output, and what ensures it."""

    NOTHING_LOST = "nothing lost"
    NOTHING_TWICE = "nothing twice"
    NOTHING_FOREIGN = "nothing foreign"
    """Every visible record is the effect of some input record, in the topic where it belongs."""
    NOTHING_UNDECIDED = "nothing undecided visible"
    """Every visible record belongs to a completed checkpoint, and was not visible before the decision."""
    ORDER = "order kept"
    """Per key, and per pair of an input and an output partition."""
    PREFIX = "prefix rule"
    """What a concurrent reader saw at any time; defined in ``onceward.operate.verify.prefix``."""
    ONE_DECISION = "one decision"
    """Each checkpoint has one decision, on one base, which never changes."""
    EVERYTHING_SETTLED = "everything settled"
    NOTHING_OPEN = "nothing open"
    """No transaction of the job is open, and nothing holds a reader back: LSO = HW."""


class Breach(NamedTuple):
    """One breach of a property."""

    topic: str
    """The topic concerned; empty if none is."""
    kind: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result for one property."""

    property: Property
    grade: Grade
    evidence: tuple[str, ...] = ()
    """Exact records, offsets and checkpoints: the first ones of each kind, each kind with its count. For UNKNOWN, what
    is missing."""

    def __str__(self) -> str:
        return "; ".join([f"{self.grade.value:<7} {self.property.value}", *self.evidence])


@dataclass(frozen=True, kw_only=True)
class Verification:
    """All results, in the order of :class:`Property`."""

    results: Mapping[Property, Result]

    @property
    def grade(self) -> Grade:
        """FAIL if any property fails, else UNKNOWN if any is unknown or none was requested, else PASS."""
        grades = {result.grade for result in self.results.values()} or {Grade.UNKNOWN}
        return next(grade for grade in (Grade.FAIL, Grade.UNKNOWN, Grade.PASS) if grade in grades)

    def having(self, grade: Grade) -> frozenset[Property]:
        return frozenset(name for name, result in self.results.items() if result.grade is grade)

    def text(self) -> str:
        """Return one line per property, the overall grade first."""
        return "\n".join([self.grade.value, *(f"  {result}" for result in self.results.values())])

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.grade.value,
            "properties": {
                name.value: {"verdict": result.grade.value, "evidence": list(result.evidence)}
                for name, result in self.results.items()
            },
        }
