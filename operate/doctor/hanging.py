"""Transactions of any program that hang in a cluster: readers of committed records stop there."""

from collections.abc import Iterator, Mapping, Sequence

from onceward.common.readable import duration
from onceward.operate.doctor.check import Check, Level
from onceward.operate.hanging import look, place, whose
from onceward.protocol.committing import HangingTransaction
from onceward.protocol.kinds import NamedSystem

__all__ = ["check_hanging"]


def check_hanging(named: Mapping[str, tuple[NamedSystem, Sequence[str]]]) -> Iterator[Check]:
    """Yield what hangs, what could not be looked into, and "none" only if everything was. ``named``: clusters with the
    topics to look into; none = all topics."""
    for name, found in look(named):
        subject = f"hanging transactions of cluster {name}"
        for one in found.transactions:
            yield _hangs(subject, one)
        for why in found.unknown:
            yield Check(
                subject=subject, found=why, level=Level.UNKNOWN, remedy="until then more may hang than is shown"
            )
        if found.looked_into and not (found.transactions or found.unknown):
            yield Check(subject=subject, found=f"none in {found.looked_into} partitions")


def _hangs(subject: str, one: HangingTransaction) -> Check:
    age = "" if one.age is None else f", its last record {duration(one.age.total_seconds())} ago"
    found = (
        f"{place(one)}, producer {one.producer_id}, epoch {one.epoch} ({whose(one)}){age}: readers of committed "
        f"records stop there; {one.meaning}"
    )
    if not one.certain:
        return Check(subject=subject, found=f"perhaps {found}", level=Level.UNKNOWN, remedy=one.doubt)
    level = Level.ERROR if one.job is None else Level.WARNING
    return Check(subject=subject, found=found, level=level, remedy=one.remedy)
