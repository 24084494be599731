"""What open transactions of other programs hold back: a ``read_committed`` reader sees nothing from the first of them
on, and lag counts only what it may see."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Final

from onceward.common.errors import CheckpointFailedError
from onceward.common.links import Links
from onceward.sources.kafka.control.leaders import Leaders
from onceward.sources.kafka.control.metadata import BrokerView
from onceward.sources.kafka.positions import Partition

__all__ = ["HeldBack"]

_LOOK_SECONDS: Final = 10.0
"""Between two looks. A transaction that was open at both is reported."""


class HeldBack:
    """Looks for open transactions at the ends of the input."""

    def __init__(self, view: BrokerView, leaders: Leaders, links: Links) -> None:
        """``links`` shows what holds the input back, while it does."""
        self._view, self._leaders, self._links = view, leaders, links
        self._due = float("-inf")
        self._ends: Mapping[Partition, int] = {}
        """Those at the last look."""
        self._shown: set[str] = set()

    def look_if_due(self, ends: Mapping[Partition, int]) -> None:
        """Show the transactions that have stood at ``ends`` since the last look. Never fails: reading continues."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _LOOK_SECONDS
        still = {partition: end for partition, end in ends.items() if self._ends.get(partition) == end}
        self._ends = dict(ends)
        try:
            found = {f"an open transaction in {p} at offset {still[p]}": about for p, *about in self._found(still)}
        except CheckpointFailedError:  # the brokers do not answer, which the links show
            return
        for link in self._shown - found.keys():
            self._links.worked(link)
        self._shown = set(found)
        for link, (offsets, producer) in found.items():
            self._links.failed(link, producer, waiting=f"{offsets} offsets from there on", held=True)

    def left_out(self, ends: Mapping[Partition, int]) -> list[str]:
        """Describe what is in the log already and behind ``ends``, because transactions were open there. Empty if the
        brokers do not answer."""
        with contextlib.suppress(CheckpointFailedError):
            return [f"{p}: {offsets} offsets from {ends[p]} on, of {who}" for p, offsets, who in self._found(ends)]
        return []

    def _found(self, ends: Mapping[Partition, int]) -> Iterator[tuple[Partition, int, str]]:
        """Yield the partitions with an open transaction at their ``ends``: offsets from there on, and the producer."""
        logs = self._view.high_watermarks(ends) if ends else {}
        longer = {partition for partition, log in logs.items() if log > ends[partition]}
        for partition, one in sorted(self._leaders.open_transactions(longer).items()):
            if one.start <= ends[partition]:
                yield partition, logs[partition] - ends[partition], one.producer
