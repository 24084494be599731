"""Collects the facts from the data set, the broker and the run's own notes, and has them judged."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onceward.dev.demo.broker import Broker, read_committed
from onceward.dev.demo.expected import expected_output
from onceward.dev.demo.flights import TOTAL, messages
from onceward.dev.demo.history import History
from onceward.dev.demo.judge import DemoResult, Facts, Seen, judge
from onceward.dev.demo.lake import left_behind, rows
from onceward.dev.demo.markers import End
from onceward.dev.demo.topics import DELAYED, FLIGHTS, JOB, OUTPUTS, REJECTED

__all__ = ["Checked", "check"]

_PREFIX = f"{JOB}."
"""Prefix of every transactional id of the job."""
_MARKERS_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The verdict, and the numbers for the table."""

    verdict: DemoResult
    rows: Mapping[str, str]


def check(
    brokers: str,
    table: Path,
    *,
    history: History,
    left_open: Collection[str],
    planned: Sequence[str],
    happened: Sequence[str],
    troubles: Sequence[str] = (),
    limit: int | None = None,
) -> Checked:
    """Judge a finished run: the driver has stopped and no process writes.

    ``table``: the directory of the table.
    ``history``: the coordinator's checkpoints; ``left_open``: ids of transactions that were open when their writers
    were dead; ``planned`` and ``happened``: names of kills; ``troubles``: other failures;
    ``limit``: how many flights were to be fed (default: all).
    """
    broker = Broker(brokers)
    _wait_for_markers(broker)
    ended = broker.ended_transactions(OUTPUTS)
    ends = broker.ends(OUTPUTS, committed=True)
    seen = {topic: list(read_committed(brokers, topic, ends)) for topic in OUTPUTS}
    facts = Facts(
        fed=TOTAL if limit is None else min(limit, TOTAL),
        arrived=sum(broker.ends([FLIGHTS]).values()),
        resumed=broker.committed_since(_PREFIX, left_open),
        aborted=ended[End.ABORT],
        open=broker.open_transactions(_PREFIX),
        stalled=broker.stalled(OUTPUTS),
        left_behind=left_behind(table),
        missing_kills=[kill for kill in planned if kill not in happened],
        troubles=[*troubles, *_unsettled(history)],
    )
    in_table = rows(table)
    verdict = judge(expected_output(messages(limit)), seen, in_table, facts)
    shown = _rows(facts, history, seen, happened, ended[End.COMMIT])
    return Checked(verdict=verdict, rows={**shown, "rows in the Delta table": f"{len(in_table):,}"})


def _wait_for_markers(broker: Broker) -> None:
    """Wait for pending markers: a broker answers a commit before the last partition has its marker. What is still
    pending after 5 s is judged as open or held back."""
    limit = time.monotonic() + _MARKERS_S
    while time.monotonic() < limit and (broker.open_transactions(_PREFIX) or broker.stalled(OUTPUTS)):
        time.sleep(0.1)


def _unsettled(history: History) -> list[str]:
    return [f"{history.unsettled} checkpoints are not settled"] if history.unsettled else []


def _rows(
    facts: Facts, history: History, seen: Mapping[str, Sequence[Seen]], kills: Sequence[str], committed: int
) -> Mapping[str, str]:
    return {
        "records in": f"{facts.arrived:,}",
        "records out": f"{len(seen[DELAYED]):,}",
        "records rejected": f"{len(seen[REJECTED]):,}",
        "checkpoints completed": f"{history.completed:,}",
        "checkpoints aborted": f"{history.aborted:,}",
        "kills": f"{len(kills)}: {', '.join(kills)}",
        "generations": f"{history.generations}",
        "transactions committed": f"{committed:,}",
        "transactions resumed": f"{facts.resumed:,}",
        "transactions aborted": f"{facts.aborted:,}",
        "transactions open": f"{len(facts.open):,}",
    }
