"""One process's way to a system: delays, loses and duplicates requests and answers."""

from collections.abc import Sequence
from typing import Any, Protocol

from onceward.sinks.kafka.control.control_plane import NoAnswer
from tests.simulation.scheduler import Process
from tests.simulation.systems import Peer

__all__ = ["Wire", "answered", "said"]

_REQUEST_TIMEOUT_S = 5.0


class Message(Protocol):
    @property
    def request(self) -> Any: ...


class Wire:
    """One process's `Transport`."""

    def __init__(self, peer: Peer, process: Process) -> None:
        self._peer = peer
        self._process = process

    def now(self) -> float:
        return self._peer.clock.now

    def sleep(self, seconds: float) -> None:
        self._peer.clock.sleep(seconds)

    def send(self, calls: Sequence[Message]) -> list[Any]:
        """See `Transport.send`. An unanswered request ends after 5 s, or as a broken connection."""
        peer, process = self._peer, self._process
        clock, link = peer.clock, peer.link
        clock.require_alive()
        task = clock.task
        assert task is not None, "a callback may not wait"
        answers: list[Any] = [None] * len(calls)
        waiting = len(calls)
        begun = last = clock.now
        deadline = begun + _REQUEST_TIMEOUT_S

        def answered(number: int, answer: Any, delay: float) -> None:
            nonlocal waiting, last
            if answers[number] is not None or clock.now + delay > deadline:
                return
            answers[number] = answer
            waiting -= 1
            last = max(last, clock.now + delay)
            if not waiting and not gone:
                clock.wake(task, max(0.0, last - clock.now))

        def lost(number: int) -> None:
            if clock.random.random() < 0.7:
                answered(number, NoAnswer(why="connection broken"), 0.01)

        def arrive(number: int, call: Message) -> None:
            answer = peer.arrived(process, call, begun)
            copies = link.fate()
            if copies:
                answered(number, answer, copies[0])
            else:
                lost(number)

        gone = False
        for number, call in enumerate(calls):
            peer.sent(process, call.request)
            copies = link.fate()
            for delay in copies:
                clock.call(peer.wires, delay, lambda n=number, c=call: arrive(n, c))  # type: ignore[misc]
            if not copies:
                lost(number)
        try:
            while clock.now < deadline and (waiting or clock.now < last):
                clock.suspend(min(deadline, last if not waiting else deadline) - clock.now)
        finally:
            gone = True
        return [NoAnswer(why="no answer within 5 s") if answer is None else answer for answer in answers]


def said(request: Any) -> str:
    name = type(request).__name__.removesuffix("Request")
    wanted = (
        "transactional_id",
        "producer_id",
        "producer_epoch",
        "committed",
        "partition",
        "group_id",
        "key_type",
        "coordinator_keys",
        "transactional_ids",
    )
    parts = [f"{key}={value}" for key in wanted if (value := getattr(request, key, None)) not in (None, -1)]
    return " ".join((name, *parts))


def answered(answer: Any) -> str:
    code = getattr(answer, "error_code", None)
    return f"error {int(code)}" if code is not None else type(answer).__name__
