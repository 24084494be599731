"""The store that a coordinator would use: whether it can be reached and trusted, and what the role may do."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onceward.coordinator.store.database import StoreKind
from onceward.coordinator.store.errors import StoreUnusableError
from onceward.coordinator.store.opening import kind_of
from onceward.coordinator.store.sqlite import file_of
from onceward.operate.doctor.check import Check, Level
from onceward.operate.doctor.machine import check_disk

if TYPE_CHECKING:
    from onceward.coordinator.store.postgres import Examination

__all__ = ["check_store", "judged"]

_REMEDY = "correct what the message names, then run doctor again"
_LARGE_S = 1.0


def check_store(url: str, password: str | None) -> Iterator[Check]:
    """Yield what a coordinator with ``--store URL`` would find. Changes nothing, and takes no lock.

    The subject is never the URL: one that is refused may hold a secret.
    """
    try:
        if kind_of(url) is StoreKind.SQLITE:
            yield check_disk(file_of(url).parent, "directory of the store")
            return
        from onceward.coordinator.store.postgres import examine

        yield from judged(examine(url, password))
    except ImportError as error:
        remedy = "pip install 'onceward[postgres]'"
        yield Check(subject="store", found=f"psycopg cannot be loaded: {error}", level=Level.ERROR, remedy=remedy)
    except StoreUnusableError as error:
        found = str(error).replace(" Nothing was started.", "")
        yield Check(subject="store", found=found, level=Level.ERROR, remedy=_REMEDY)


def judged(found: "Examination") -> Iterator[Check]:
    used = f"used by {found.leader}" if found.leader else "no coordinator uses it"
    where = f"database {found.database}, schema {found.schema or '-'}, role {found.role}"
    yield Check(subject="store", found=f"PostgreSQL {found.version}, {where}; {used}")
    for problem in found.problems:
        yield Check(subject="store", found=problem, level=Level.ERROR, remedy=_REMEDY)
    if not found.missing_rights and found.schema:
        may = "may create its tables" if found.is_new else "may read and write its tables"
        yield Check(subject="rights in the store", found=f"{found.role} {may}")
    for right in found.missing_rights:
        yield Check(
            subject="rights in the store",
            found=f"{found.role} has no {right}",
            level=Level.ERROR,
            remedy=f"GRANT {right.replace(' on ', ' ON ', 1)} TO {found.role}",
        )
    for held in found.holding:
        yield Check(
            subject="old rows of the store",
            found=f"{held}, keeps the versions of rows that each checkpoint replaces: the store slows down with them",
            level=Level.WARNING,
            remedy="end it, or have something read the slot; then the server removes them by itself",
        )
    yield _clock(found)


def _clock(found: "Examination") -> Check:
    subject = "clock of the store"
    beyond = max(0.0, abs(found.ahead_s) - found.give_or_take_s)
    zone = f"its time zone is {found.zone}, the store keeps UTC"
    if beyond < _LARGE_S:
        return Check(subject=subject, found=f"as this machine's; {zone}")
    side = "ahead of" if found.ahead_s > 0 else "behind"
    return Check(
        subject=subject,
        found=f"at least {beyond:.1f} s {side} this machine's; {zone}",
        level=Level.WARNING,
        remedy="run a time service on both; exactly once does not depend on clocks",
    )
