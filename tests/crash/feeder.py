"""Feeds a topic while processes die: an ordinary idempotent producer, in a thread, that knows nothing of us."""

import threading
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

__all__ = ["Feeder"]

_TICK_S = 0.1
_FLUSH_S = 120.0
_KEYS = 5
"""Per partition; the key tells its partition, the value its place in the key's order."""


class Feeder:
    """Writes ``rate`` records per second to each partition until it is told to stop. A context manager."""

    def __init__(self, servers: str, topic: str, *, partitions: int, rate: int) -> None:
        self._topic, self._partitions, self._rate = topic, partitions, rate
        self._errors: list[KafkaError] = []
        self._confirmed = 0
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "log_level": 0,
                "enable.idempotence": True,
                "linger.ms": 5,
                "on_delivery": self._delivered,
            }
        )
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def finish(self) -> int:
        """Stop; how many records the brokers have confirmed. Raises AssertionError unless these are all."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(_FLUSH_S)
        assert not left, f"{left} records are not confirmed"
        assert not self._errors, f"the brokers refused {len(self._errors)} records, first: {self._errors[0]}"
        return self._confirmed

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for _ in range(max(1, int(self._rate * _TICK_S))):
                for partition in range(self._partitions):
                    key = b"key-%d-%d" % (partition, number % _KEYS)
                    self._producer.produce(self._topic, b"%d-%d" % (partition, number), key, partition)
                number += 1
            self._producer.poll(0)
            self._stop.wait(_TICK_S)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._confirmed += 1
        else:
            self._errors.append(error)
