"""The command with which a person decides about slots of a halted job, for the command line and the page."""

import shlex
from collections.abc import Collection, Mapping

from onceward.protocol.requests import Ruling
from onceward.protocol.values import JobName, ParticipantName

__all__ = ["CONSEQUENCE", "OPTION", "resolve_command"]

CONSEQUENCE: Mapping[Ruling, str] = {
    Ruling.COMMITTED: "it counts as committed. If it is not, its records are missing and no loss is recorded",
    Ruling.GIVEN_UP: "it counts as not committed, and its records are given up. The loss is recorded",
    Ruling.REPLAY: "it counts as not committed: the next start of the job replays its records",
}
"""Of a ruling, for each of its slots."""

OPTION: Mapping[Ruling, str] = {
    Ruling.REPLAY: "--replay",
    Ruling.GIVEN_UP: "--give-up",
    Ruling.COMMITTED: "--commit",
}
"""The safest first."""


def resolve_command(
    job: JobName, sink: ParticipantName, ruling: Ruling, slots: Collection[int], *, coordinator: str
) -> str:
    """Return the line for a shell; the person still replaces the reason."""
    numbers = ",".join(map(str, sorted(slots)))
    words = ["onceward", "resolve", job, OPTION[ruling], numbers, "--sink", sink, "--coordinator", coordinator]
    return shlex.join([*words, "--reason", "NAME: REASON"])
