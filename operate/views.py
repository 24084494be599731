"""Show what a coordinator answers: once, or again and again until Ctrl-C."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Group

from onceward.client.operators import OperatorClient
from onceward.common.errors import ExitCode
from onceward.operate.connecting import CoordinatorLocation, operators
from onceward.operate.options import View
from onceward.operate.tables import Listing, Times, console, print_json, print_listings

__all__ = ["Answer", "show"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a coordinator has answered."""

    values: Any
    """For programs."""
    listings: Callable[[Times], Sequence[Listing]]
    """For people."""
    code: ExitCode = ExitCode.FINISHED


def show(place: CoordinatorLocation, view: View, ask: Callable[[OperatorClient], Answer]) -> ExitCode:
    """Ask and show the answer; return its exit code. With ``view.watch``, the code of the last answer."""
    if view.watch:
        from onceward.operate.watching import watch

        screen = console()
        drawn = watch(
            place,
            ask,
            lambda answer, _: Group(*(listing.fitted(screen.width)[0] for listing in answer.listings(_times(view)))),
        )
        return drawn.code
    with operators(place) as (client, _):
        answer = ask(client)
    if view.as_json:
        print_json(answer.values)
    else:
        print_listings(answer.listings(_times(view)))
    return answer.code


def _times(view: View) -> Times:
    return Times(now=datetime.now(UTC), utc=view.utc)
