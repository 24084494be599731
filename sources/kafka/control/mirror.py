"""Shows settled positions in the consumer group, for people and lag tools. Never read back, never delays the job."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from confluent_kafka import KafkaException

from onceward.coordinator.printable import logger
from onceward.sources.kafka.control.metadata import BrokerView
from onceward.sources.kafka.positions import Partition

__all__ = ["GroupMirror"]

_LAST_SECONDS = 2.0

_log = logger("onceward.source.kafka")


class GroupMirror:
    """Commits offsets to one group without waiting: one request at a time, the newest offsets win."""

    def __init__(self, view: BrokerView, group: str) -> None:
        self._view = view
        self._group = group
        self._wanted: dict[Partition, int] = {}
        self._shown: dict[Partition, int] = {}
        self._sending: tuple[Future[Any], dict[Partition, int]] | None = None
        self._warned = False

    def show(self, offsets: Mapping[Partition, int]) -> None:
        self._wanted = dict(offsets)
        try:
            self._collect(wait=0.0)
            self._send()
        except Exception as error:  # noqa: BLE001 - best effort is the contract
            self._failed(error)

    def close(self) -> None:
        """Wait briefly for the last offsets to arrive."""
        try:
            self._collect(wait=_LAST_SECONDS)
            self._send()
            self._collect(wait=_LAST_SECONDS)
        except Exception as error:  # noqa: BLE001 - best effort is the contract
            self._failed(error)

    def _send(self) -> None:
        changed = {p: offset for p, offset in self._wanted.items() if self._shown.get(p) != offset}
        if changed and self._sending is None:
            self._sending = (self._view.commit(self._group, changed), changed)

    def _collect(self, wait: float) -> None:
        if self._sending is None:
            return
        question, offsets = self._sending
        try:
            answer = question.result(timeout=wait)
        except FutureTimeoutError:
            return
        except KafkaException as error:
            self._sending = None
            self._failed(error.args[0])
            return
        self._sending = None
        failed = [partition.error for partition in answer if partition.error is not None]
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
