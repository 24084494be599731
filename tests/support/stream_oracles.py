"""What each program of ``examples/streams`` must write, in plain Python: no Spark, and no code of the programs.

The input comes in rounds. A run of a program reads one round as one batch, then moves the watermark. Each oracle
returns the records that all rounds write, in no particular order.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple

__all__ = [
    "Row",
    "alerts",
    "enriched_views",
    "final_totals",
    "paid_orders",
    "reorders",
    "sessions",
    "stock",
    "total_changes",
    "word_counts",
]

Row = tuple[str, str | None]
"""Key and value."""
Rounds = Sequence[Iterable[Row]]

_HOUR = timedelta(hours=1)
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class _Event(NamedTuple):
    key: str
    at: datetime
    body: dict[str, Any]


def _events(rows: Iterable[Row]) -> list[_Event]:
    bodies = [(key, json.loads(value or "")) for key, value in rows]
    return [_Event(key, datetime.fromisoformat(body["at"]), body) for key, body in bodies]


def _newest(events: Iterable[_Event], before: datetime, delay: timedelta) -> datetime:
    """The watermark after a round."""
    return max([before, *(event.at - delay for event in events)])


def _text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(**values: Any) -> str:
    return json.dumps(values, separators=(",", ":"))


def word_counts(rounds: Rounds) -> Counter[Row]:
    counts: Counter[str] = Counter()
    written: Counter[Row] = Counter()
    for lines in rounds:
        found = Counter(word for _, line in lines for word in re.findall(r"\w+", (line or "").lower()))
        counts += found
        written.update((word, str(counts[word])) for word in found)
    return written


def _totals(rounds: Rounds) -> tuple[Counter[Row], Counter[Row]]:
    """All changes of totals, and the totals of hours that are over."""
    totals: dict[tuple[datetime, str], list[int]] = {}
    changes: Counter[Row] = Counter()
    final: Counter[Row] = Counter()
    seen: set[int] = set()
    watermark = _LONG_AGO

    def row(hour: datetime, category: str) -> Row:
        orders, cents = totals[hour, category]
        return f"{hour:%Y-%m-%dT%H} {category}", _json(orders=orders, cents=cents)

    for round_ in rounds:
        orders = _events(round_)
        changed = set()
        for order in orders:
            if order.at > watermark and order.body["order"] not in seen:
                seen.add(order.body["order"])
                place = order.at.replace(minute=0, second=0, microsecond=0), order.body["category"]
                total = totals.setdefault(place, [0, 0])
                total[0] += 1
                total[1] += order.body["cents"]
                changed.add(place)
        changes.update(row(*place) for place in changed)
        watermark = _newest(orders, watermark, _HOUR)
        over = [place for place in totals if place[0] + _HOUR <= watermark]
        final.update(row(*place) for place in over)
        for place in over:
            del totals[place]
    return changes, final


def total_changes(rounds: Rounds) -> Counter[Row]:
    return _totals(rounds)[0]


def final_totals(rounds: Rounds) -> Counter[Row]:
    return _totals(rounds)[1]


def enriched_views(rounds: Sequence[tuple[Iterable[Row], Iterable[Row]]]) -> Counter[Row]:
    """Each round: views, and what the topic of users gained before."""
    table: dict[str, str | None] = {}
    written: Counter[Row] = Counter()
    for views, users in rounds:
        table.update(users)
        for view in _events(views):
            user = json.loads(table.get(view.key) or "{}")
            written[view.key, _json(page=view.body["page"], **user)] += 1
    return written


def sessions(rounds: Rounds) -> Counter[Row]:
    gap = timedelta(minutes=30)
    open_: dict[str, list[list[_Event]]] = {}
    written: Counter[Row] = Counter()
    watermark = _LONG_AGO
    for round_ in rounds:
        actions = _events(round_)
        for action in actions:
            if action.at + gap > watermark:
                theirs = open_.setdefault(action.key, [])
                near = [one for one in theirs if one[0].at - gap <= action.at <= one[-1].at + gap]
                merged = sorted([action, *chain(*near)], key=lambda event: event.at)
                open_[action.key] = [one for one in theirs if one not in near] + [merged]
        watermark = _newest(actions, watermark, timedelta(minutes=10))
        for user, theirs in open_.items():
            open_[user] = [one for one in theirs if one[-1].at + gap > watermark]
            for one in theirs:
                if one[-1].at + gap <= watermark:
                    left = any(action.body["action"] == "logout" for action in one)
                    times = {"first": _text(one[0].at), "last": _text(one[-1].at)}
                    written[user, _json(**times, actions=len(one), logged_out=left)] += 1
    return written


def paid_orders(rounds: Sequence[tuple[Iterable[Row], Iterable[Row]]]) -> Counter[Row]:
    """Each round: orders and payments."""
    waiting: dict[int, _Event] = {}
    paid: dict[int, _Event] = {}
    seen: set[int] = set()
    written: Counter[Row] = Counter()
    newest_order = newest_payment = watermark = _LONG_AGO
    for new_orders, new_payments in rounds:
        orders, payments = _events(new_orders), _events(new_payments)
        for order in orders:
            number = order.body["order"]
            if order.at > watermark and number not in seen:
                seen.add(number)
                waiting[number] = order
        paid |= {payment.body["order"]: payment for payment in payments if payment.at > watermark}
        newest_order = _newest(orders, newest_order, _HOUR)
        newest_payment = _newest(payments, newest_payment, _HOUR)
        watermark = min(newest_order, newest_payment)
        for number, order in list(waiting.items()):
            facts = {"cents": order.body["cents"], "at": _text(order.at)}
            payment = paid.get(number)
            if payment is not None and order.at <= payment.at <= order.at + _HOUR:
                facts["paid_at"] = _text(payment.at)
            elif order.at + _HOUR > watermark:
                continue
            written[str(number), _json(**facts)] += 1
            del waiting[number]
    return written


def stock(rounds: Rounds) -> Counter[Row]:
    pieces: Counter[str] = Counter()
    written: Counter[Row] = Counter()
    for round_ in rounds:
        movements = list(round_)
        for product, moved in movements:
            pieces[product] += int(moved or 0)
        written.update((product, str(pieces[product]) if pieces[product] else None) for product in dict(movements))
    return written


def reorders(rounds: Rounds) -> Counter[Row]:
    """From the movements of stock, as a job reads them from the table of the stock."""
    written: Counter[Row] = Counter()
    for (product, pieces), times in stock(rounds).items():
        if int(pieces or 0) < 10:
            written[product, str(20 - int(pieces or 0))] += times
    return written


def alerts(rounds: Rounds) -> Counter[Row]:
    """No reading arrives after the watermark has passed it, so the rounds make no difference."""
    readings = [event for round_ in rounds for event in _events(round_)]
    watermark = _newest(readings, _LONG_AGO, timedelta(minutes=1))
    silence = timedelta(minutes=10)
    written: Counter[Row] = Counter()
    for sensor in {reading.key for reading in readings}:
        theirs = sorted((event for event in readings if event.key == sensor), key=lambda event: event.at)
        for reading, following in zip(theirs, [*theirs[1:], None], strict=True):
            if following.at - reading.at > silence if following else reading.at + silence <= watermark:
                written[sensor, f"silent since {reading.at:%H:%M:%S}, {reading.body['celsius']} °C"] += 1
    return written
