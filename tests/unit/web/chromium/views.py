"""Everything that the page shows. A new view is one line here: it is then tested and drawn as the others are."""

from dataclasses import dataclass

from tests.unit.web.chromium.prepared import CHECKPOINT, FINISHED, HALTED, LETTERS, PRIVATE, RESTARTING, RUNNING

__all__ = ["SHAPES", "VIEWS", "Shape", "View"]


@dataclass(frozen=True, kw_only=True)
class View:
    name: str
    address: str
    """Of the prepared site."""
    drawn: bool = False
    """Pictures of it are in docs/images."""
    refreshed: bool = True
    """It is replaced by itself. A form is not."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A window."""

    name: str
    width: int
    scheme: str

    def __str__(self) -> str:
        return self.name


VIEWS = (
    View(name="jobs", address="/", drawn=True),
    View(name="running", address=f"/jobs/{RUNNING}", drawn=True),
    View(name="restarting", address=f"/jobs/{RESTARTING}", drawn=True),
    View(name="halted", address=f"/jobs/{HALTED}", drawn=True),
    View(name="finished", address=f"/jobs/{FINISHED}", drawn=True),
    View(name="checkpoint", address=f"/jobs/{HALTED}/checkpoints/{CHECKPOINT}", drawn=True),
    View(name="coordinators", address="/cluster", drawn=True),
    View(name="sign in", address=f"/jobs/{PRIVATE}", refreshed=False),
    View(name="letters", address=f"/jobs/{LETTERS}"),
    View(name="losses", address="/jobs/fraud-scores"),
    View(name="orphan", address="/jobs/sessions"),
    View(name="finishing", address="/jobs/audit-export"),
    View(name="no checkpoints", address="/jobs/prices"),
    View(name="longest name", address="/jobs/shipments-by-warehouse-carrier-and-day-of-promised-delivery-eu1"),
    View(name="pages", address="/?limit=2&page=2&sort=name"),
    View(name="none found", address="/?q=absent&status=halted"),
    View(name="unknown", address="/jobs/absent"),
    View(name="refused", address="/?page=0"),
)

SHAPES = (
    Shape(name="light", width=1280, scheme="light"),
    Shape(name="dark", width=1280, scheme="dark"),
    Shape(name="narrow", width=380, scheme="light"),
    Shape(name="narrow-dark", width=380, scheme="dark"),
)
