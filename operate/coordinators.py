"""``onceward coordinators``: who leads and who stands by, and what the coordinator that is asked says of itself."""

from collections.abc import Iterator

from onceward.client.operators import OperatorClient
from onceward.common.errors import ExitCode
from onceward.common.readable import duration, latency
from onceward.operate.connecting import CoordinatorLocation
from onceward.operate.options import View
from onceward.operate.tables import Cell, Column, Listing, Times, status
from onceward.operate.views import Answer, show
from onceward.wire.rows import Certificate, CommitTimes, CoordinatorDescription, CoordinatorRole

__all__ = ["show_coordinators"]

_UNKNOWN = "-"


def show_coordinators(place: CoordinatorLocation, view: View) -> ExitCode:
    return show(place, view, _coordinators)


def _coordinators(client: OperatorClient) -> Answer:
    found = client.coordinator()
    return Answer(values=found, listings=lambda times: [_who(found, times), _what(found, times), _settings(found)])


def _who(found: CoordinatorDescription, times: Times) -> Listing:
    shown = Listing(
        "coordinator",
        "status",
        "since",
        Column(name="connected from", spare=2),
        Column(name="page", spare=1),
        if_empty=f"It is not known who leads: {found.detail or 'no coordinator ever did'}.",
    )
    if (leader := found.leader) is not None:
        address = leader.address or "inside a driver"
        shown.add(address, status("leads"), times.of(leader.since), _UNKNOWN, leader.web or _UNKNOWN)
    for one in found.standbys or ():
        shown.add(one.name, status("stands by"), times.of(one.since), one.address or "the store's machine", _UNKNOWN)
    if found.role is CoordinatorRole.STANDS_BY:
        shown.add("the one that was asked", status("stands by"), _UNKNOWN, _UNKNOWN, _UNKNOWN)
    return shown


def _what(found: CoordinatorDescription, times: Times) -> Listing:
    shown = Listing("of the one that was asked", Column(name="value", text=True))
    for name, value in _facts(found, times):
        shown.add(name, value)
    return shown


def _facts(found: CoordinatorDescription, times: Times) -> Iterator[tuple[str, Cell]]:
    if found.detail:
        yield "why it does not lead", found.detail
    if found.leader is not None:
        yield "term", str(found.leader.term)
    alone = "" if found.shared else ", for one coordinator alone"
    yield "store", " ".join(filter(None, (found.store, found.store_id))) + alone
    if found.role is CoordinatorRole.LEADS and found.shared and found.standbys is None:
        yield "standbys", "the database does not say"
    yield "writes of decisions", _commits(found.commits)
    yield "jobs", _number(found.jobs)
    yield "drivers connected", _number(found.drivers)
    yield "open calls", f"{found.calls} of {found.most_calls}"
    yield "connections", _number(found.connections)
    for certificate in found.certificates:
        yield f"--{certificate.option}", _expiry(certificate, times)
    yield "version", found.version or _UNKNOWN


def _commits(commits: CommitTimes | None) -> str:
    if commits is None or commits.median is None or commits.p99 is None or commits.worst is None:
        return _UNKNOWN
    median, p99, worst = (latency(one.total_seconds()) for one in (commits.median, commits.p99, commits.worst))
    window = duration(commits.window.total_seconds())
    return f"half within {median}, 99 % within {p99}, the worst {worst} ({commits.commits} in the last {window})"


def _number(number: int | None) -> str:
    return _UNKNOWN if number is None else str(number)


def _expiry(certificate: Certificate, times: Times) -> Cell:
    at = certificate.expires_at
    if at is None:
        return "cannot be read now"
    left = (at - times.now).total_seconds()
    if times.utc:
        return f"{'expires' if left > 0 else 'expired'} {times.of(at)}"
    return f"expires in {duration(left)}" if left > 0 else f"expired {times.of(at)}"


def _settings(found: CoordinatorDescription) -> Listing:
    shown = Listing("option in force", Column(name="value", text=True), if_empty="It has no options of its own.")
    for one in found.settings:
        shown.add(f"--{one.name}", one.value or _UNKNOWN)
    return shown
