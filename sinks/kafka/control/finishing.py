"""When a part that stays open counts as hanging, and finishing it (docs/protocol.md#skipped-markers).

Commits, sweeps, fences and claims all do it here: :class:`Finishing` decides when, and :mod:`hanging` writes.
"""

from collections.abc import Collection, Mapping

from onceward.common.printable import logger
from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.control.brokers import topic_facts
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.hanging import Hanging, finish, hangs, unfinishable
from onceward.sinks.kafka.control.outcomes import EndAnswer, classify, describe_code
from onceward.sinks.kafka.control.parts import look_for_open, open_parts
from onceward.sinks.kafka.control.transactions import OVER, State, Transactions, TransactionView
from onceward.sinks.kafka.errors import ControlPlaneError

__all__ = ["LOOK_INTERVAL_S", "Finishing", "finish_abandoned"]

_log = logger("onceward.kafka")

LOOK_INTERVAL_S = 2.1
"""Time between two looks: a stale coordinator or leader gives wrong negative answers for some seconds (KAFKA-21181)."""

_REFUSALS = 5
"""Refused attempts to write skipped markers before they count as impossible."""

_PATIENCE_S = 30.0


class Finishing:
    """Finishes one transaction, which is over for its coordinator and has an open part."""

    def __init__(self, control: ControlPlane, clock: Clock) -> None:
        self._control = control
        self._clock = clock
        self._since: float | None = None
        """Since when the coordinator has reported the end as complete at each look, although a part is open."""
        self._refused = 0
        self.written = 0
        """Markers that the brokers have accepted to write since the last :meth:`shown`."""
        self._outcome = ""

    def wait(self) -> None:
        """Forget the looks so far: the coordinator still ends it, or does not answer."""
        self._since = None

    def look(self, one: Hanging, view: TransactionView, *, commit: bool) -> str | None:
        """Take a look: a part was open, then ``view`` showed that it is over. From the second look on, write the
        markers with the outcome that was decided. Returns why that is impossible; None to look again."""
        now = self._clock.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since < LOOK_INTERVAL_S:
            return None
        if (why := unfinishable(one, view)) is not None:
            return self._hangs(one, why)
        code = finish(self._control, one, view, commit=commit)
        match classify(code):
            case EndAnswer.DONE:
                self._since, self._outcome = None, "committed" if commit else "aborted"
                self.written += len(one.places) or 1
            case EndAnswer.DOUBT:
                self._refused += 1
                why = self._hangs(one, f"the brokers refuse it: {describe_code(code)}")
                if self._refused >= _REFUSALS:
                    return why
            case EndAnswer.AGAIN:
                self._hangs(one, describe_code(code))
        return None

    def _hangs(self, one: Hanging, why: str) -> str:
        """Show that it cannot be finished now, until :meth:`shown`."""
        where = ", ".join(f"{name}-{part} offset {first}" for (name, part), first in sorted(one.places.items())[:10])
        self._control.links.hangs(one.id, f"readers of committed records at {where or 'its offsets'}", why)
        return why

    def shown(self, name: str) -> None:
        """Log and count what was written: no part is open any more."""
        if self.written or name in self._control.links.hanging:
            self._control.links.hangs_no_more(name, by_us=self.written > 0)
        if self.written:
            _log.warning(
                "%s had ended as %s without %d of its markers, so no reader got past it: the brokers had skipped them, "
                "as they do without a leader. They are written now.",
                name,
                self._outcome,
                self.written,
            )
        self.written = 0


def finish_abandoned(
    control: ControlPlane,
    job: str,
    topics: Collection[str] | None,
    keep: Collection[str],
    newest: int,
    clock: Clock,
) -> list[str]:
    """End what hangs in ``topics`` of ids that have no committable to settle: of transactions that were aborted, or
    timed out. ``topics``: None = all; ``keep``: ids that are settled elsewhere; ``newest``: the newest generation that
    is touched. Returns the ids that were ended. Raises ControlPlaneError.

    One whose commit the coordinator still reports is committed. One of which it reports only a later epoch was fenced:
    an id of a committed checkpoint is used again only when all its markers are there.
    """
    deadline = clock.monotonic() + _PATIENCE_S
    looked: dict[str, Finishing] = {}
    while found := _abandoned(control, job, topics, keep, newest):
        for name, (one, view) in found.items():
            finishing = looked.setdefault(name, Finishing(control, clock))
            why = finishing.look(one, view, commit=view.state is State.COMPLETE_COMMIT)
            if why is None and clock.monotonic() >= deadline:
                why = f"it was tried for {_PATIENCE_S:.0f} s, and is tried again"
            if why is not None:
                raise ControlPlaneError(hangs(control, f"{name} has ended", one, why))
        clock.wait(LOOK_INTERVAL_S)
    for name, finishing in looked.items():
        finishing.shown(name)
    _forget_ended(control, topics, set(control.links.hanging) - set(keep))
    return sorted(looked)


def _forget_ended(control: ControlPlane, topics: Collection[str] | None, names: Collection[str]) -> None:
    """Show ``names`` no longer as hanging if another process has ended them, such as the brokers' tool."""
    if not names:
        return
    views = Transactions(control).describe(names)
    parts, refused, silent = look_for_open(control, topic_facts(control, topics))
    still = {part.producer_id for part in parts}
    for name, view in views.items():
        if view.code == ErrorCode.NONE and view.producer_id not in still and not (refused or silent):
            control.links.hangs_no_more(name, by_us=False)


def _abandoned(
    control: ControlPlane, job: str, topics: Collection[str] | None, keep: Collection[str], newest: int
) -> Mapping[str, tuple[Hanging, TransactionView]]:
    """Return what seems to hang, by id: the coordinator is asked first, because its markers precede its report."""
    open_ = open_parts(control, topics)
    if not open_:
        return {}
    transactions = Transactions(control)
    ids, _ = control.run(transactions.listing_open_ids(job, states=OVER, producers=open_.keys()))
    names = [str(one) for one in ids if one.generation <= newest and str(one) not in keep]
    views = transactions.describe(names)
    open_ = open_parts(control, topics) if names else {}
    found: dict[str, tuple[Hanging, TransactionView]] = {}
    for name, view in views.items():
        parts = open_.get(view.producer_id, {})
        if view.code == ErrorCode.NONE and view.state in OVER and parts:
            places = {place: first for place, (_, first) in parts.items()}
            found[name] = Hanging(id=name, producer_id=view.producer_id, places=places, group=name), view
    return found
