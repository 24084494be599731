"""Feeds a topic while processes die: an ordinary idempotent producer in a thread, independent of Onceward."""

import threading

from confluent_kafka import KafkaError, Message, Producer

from tests.support.background import Background

__all__ = ["Feeder"]

_TICK_S = 0.1
_FLUSH_S = 120.0


class Feeder(Background):
    """Write ``rate`` records per second to each partition until stopped."""

    def __init__(self, servers: str, topic: str, *, partitions: int, rate: int, keys: int = 5) -> None:
        """``keys``: per partition. A key names its partition, a value its place in the key's order."""
        super().__init__("feeder")
        self._topic, self._partitions, self._rate, self._keys = topic, partitions, rate, keys
        self.flowing = threading.Event()
        """Cleared for a pause."""
        self.flowing.set()
        self._errors: list[KafkaError] = []
        self._confirmed = 0
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "log_level": 0,
                "enable.idempotence": True,
                "linger.ms": 5,
                "on_delivery": self._delivered,
            }
        )

    def finish(self) -> int:
        """Stop and return the number of confirmed records. Raises AssertionError unless every record is confirmed."""
        self.stop()
        left = self._producer.flush(_FLUSH_S)
        assert not left, f"{left} records are not confirmed"
        assert not self._errors, f"the brokers refused {len(self._errors)} records, first: {self._errors[0]}"
        return self._confirmed

    def work(self) -> None:
        number = 0
        while not self.over.is_set():
            for _ in range(max(1, int(self._rate * _TICK_S)) if self.flowing.is_set() else 0):
                for partition in range(self._partitions):
                    key = b"key-%d-%d" % (partition, number % self._keys)
                    self._producer.produce(self._topic, b"%d-%d" % (partition, number), key, partition)
                number += 1
            self._producer.poll(0)
            self.over.wait(_TICK_S)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._confirmed += 1
        else:
            self._errors.append(error)
