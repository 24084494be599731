"""Shows settled positions in the consumer group, for people and lag tools. Never read back, never delays the job."""

import logging
import threading
from collections.abc import Mapping

from confluent_kafka import KafkaException

from onceward.common.printable import logger
from onceward.sources.kafka.control.metadata import BrokerView
from onceward.sources.kafka.positions import Partition

__all__ = ["GroupMirror"]

_INTERVAL_S = 1.0
"""Between two commits: a job may settle 40 checkpoints in a second, and lag tools look less often."""
_LAST_S = 4.0

_log = logger("onceward.source.kafka")


class GroupMirror:
    """Commits the newest offsets to one group, in a thread of its own."""

    def __init__(self, view: BrokerView, group: str, *, interval_s: float = _INTERVAL_S) -> None:
        self._view = view
        self._group = group
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._wanted: dict[Partition, int] = {}
        self._shown: dict[Partition, int] = {}
        self._closing = False
        self._warned = False
        self._thread: threading.Thread | None = None

    def show(self, offsets: Mapping[Partition, int]) -> None:
        with self._changed:
            self._wanted = dict(offsets)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="onceward-offsets", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait briefly for the last offsets to arrive."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_LAST_S)

    def _run(self) -> None:
        last = False
        while not last:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._left())
                offsets, last = self._left(), self._closing
            if offsets:
                self._send(offsets)
            with self._changed:
                self._changed.wait_for(lambda: self._closing, self._interval_s)

    def _left(self) -> dict[Partition, int]:
        return {place: offset for place, offset in self._wanted.items() if self._shown.get(place) != offset}

    def _send(self, offsets: Mapping[Partition, int]) -> None:
        failed: list[object]
        try:
            failed = [place.error for place in self._view.commit(self._group, offsets) if place.error is not None]
        except KafkaException as error:
            failed = [error.args[0]]
        except Exception as error:  # noqa: BLE001 - best effort is the contract
            failed = [error]
        if failed:
            self._failed(failed[0])
        else:
            self._shown.update(offsets)
            self._warned = False

    def _failed(self, error: object) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        _log.log(
            level,
            "offsets are not mirrored to group %s: %s; only lag tools miss them. The user needs READ on the group",
            self._group,
            error,
        )
