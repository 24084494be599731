"""What a reader asks beside the records: the ends of a log, and what is wrong with a topic."""

import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from onceward.connections.sockets.brokers import Brokers
from onceward.connections.sockets.errors import as_kafka_errors
from onceward.sources.kafka.client.native.meanings import Meaning, meaning_of
from onceward.sources.kafka.client.native.offsets import EARLIEST, LATEST, Found, OffsetRequest

__all__ = ["Questions"]

_LOOK_S: Final = 0.5


class Questions:
    """Asks until there is an answer or no time is left. Raises KafkaException."""

    def __init__(self, brokers: Brokers, serve: Callable[[float], object]) -> None:
        """``serve``: sends and receives, for at most the given seconds."""
        self._brokers, self._serve = brokers, serve

    def watermarks(self, topic: str, partition: int, timeout: float) -> tuple[int, int]:
        """Return the first offset of a log and the end of what is committed."""
        until = time.monotonic() + timeout
        first = self._offset(topic, partition, EARLIEST, until)
        return first, self._offset(topic, partition, LATEST, until)

    def topic_error(self, topic: str, timeout: float) -> KafkaError | None:
        """Return the error of a topic, as metadata asked now say."""
        until = time.monotonic() + timeout
        before = self._brokers.refreshes
        self._brokers.refresh([topic])
        while (left := until - time.monotonic()) > 0:
            self._serve(min(left, _LOOK_S))
            found = self._brokers.topic(topic)
            if self._brokers.refreshes > before and found is not None:
                return KafkaError(found.error) if found.error else None
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no broker answered for topic {topic}"))

    def _offset(self, topic: str, partition: int, which: int, until: float) -> int:
        answers: list[Found | None] = []
        asked = False
        while True:
            known, leader = self._brokers.topic(topic), self._brokers.leader(topic, partition)
            if known is not None and known.error and meaning_of(known.error) is Meaning.FAIL:
                raise KafkaException(KafkaError(known.error))
            if leader is None:
                self._brokers.refresh([topic])
            elif not asked:
                request = OffsetRequest(topic, partition, which, answers.append, lambda why: answers.append(None))
                with as_kafka_errors():
                    asked = self._brokers.send(leader.node, request)
            left = until - time.monotonic()
            if left <= 0:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer for {topic}-{partition}"))
            self._serve(min(left, _LOOK_S))
            if answers:
                answer, asked = answers.pop(), False
                if answer is not None and not answer.error:
                    return answer.offset
                if answer is not None and meaning_of(answer.error) is Meaning.FAIL:
                    raise KafkaException(KafkaError(answer.error))
                self._brokers.refresh([topic])
