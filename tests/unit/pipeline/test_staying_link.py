"""The connection between a driver and its staying tasks, over real sockets."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from onceward.coordinator.pipeline.staying import link as links
from onceward.coordinator.pipeline.staying.link import Link, LinkLostError, accept, connect, new_secret


@contextmanager
def linked(theirs: bytes, ours: bytes) -> Iterator[tuple["list[Link]", "list[LinkLostError]", Link]]:
    """The driver's links, its refusals, and the task's link."""
    accepted: list[Link] = []
    refused: list[LinkLostError] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            try:
                accepted.append(accept(listening.accept()[0], theirs))
            except LinkLostError as error:
                refused.append(error)

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            task = connect(listening.getsockname(), ours)
            serving.join()
            yield accepted, refused, task
            task.close()
        finally:
            serving.join()
            for each in accepted:
                each.close()


def test_messages_pass_in_both_directions_in_order() -> None:
    secret = new_secret()
    with linked(secret, secret) as ((driver,), _, task):
        for number in range(3):
            task.send({"vote": number})
            driver.send({"cut": number, "options": {"committed": {"a.0": 3}}})
        assert [driver.receive() for _ in range(3)] == [{"vote": 0}, {"vote": 1}, {"vote": 2}]
        assert [task.receive()["cut"] for _ in range(3)] == [0, 1, 2]


def test_a_task_without_the_secret_is_refused_and_notices_that_its_driver_is_another() -> None:
    with pytest.raises(LinkLostError, match="not this task's driver"), linked(new_secret(), new_secret()):
        pass


def test_a_frame_that_was_changed_on_its_way_ends_the_connection() -> None:
    secret = new_secret()
    with linked(secret, secret) as ((driver,), _, task):
        send = task._peer.send

        class Changing:
            def send(self, data: memoryview) -> int:
                return send(bytes(data).replace(b"7", b"8"))

            def __getattr__(self, name: str) -> object:
                return getattr(task_peer, name)

        task_peer = task._peer
        task._peer = Changing()  # type: ignore[assignment]
        task.send({"vote": 7})
        task._peer = task_peer
        with pytest.raises(LinkLostError, match="did not send"):
            driver.receive()


def test_a_frame_that_is_sent_again_ends_the_connection() -> None:
    secret = new_secret()
    with linked(secret, secret) as ((driver,), _, task):
        sent = task._sent
        task.send({"vote": 7})
        task._sent = sent
        task.send({"vote": 7})
        assert driver.receive() == {"vote": 7}
        with pytest.raises(LinkLostError, match="did not send"):
            driver.receive()


def test_a_silent_peer_is_lost_and_one_that_pings_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_PING_S", 0.05)
    monkeypatch.setattr(links, "LOST_S", 0.5)
    secret = new_secret()
    with linked(secret, secret) as ((driver,), _, task):
        lost: list[LinkLostError] = []

        def listen() -> None:
            try:
                task.receive()
            except LinkLostError as error:
                lost.append(error)

        listening = threading.Thread(target=listen)
        monkeypatch.setattr(driver, "send", lambda _message: None)
        listening.start()  # it pings while it waits; the driver does not answer
        listening.join()
        assert "nothing was heard" in str(lost[0])
        task.close()
        with pytest.raises(LinkLostError, match="closed"):
            driver.receive()  # it heard the pings until the task left
