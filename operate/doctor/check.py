"""One line of ``onceward doctor``."""

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Check", "Level"]


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    """A job would not start, or not run."""
    UNKNOWN = "unknown"
    """It was not asked, or nothing can answer it from here."""


@dataclass(frozen=True, kw_only=True)
class Check:
    subject: str
    found: str
    level: Level = Level.OK
    remedy: str = ""
    ok: bool = field(init=False)
    """False for an error."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ok", self.level is not Level.ERROR)
