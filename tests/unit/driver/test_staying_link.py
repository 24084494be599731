"""The connection between a driver and its staying tasks, over real sockets."""

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from onceward.driver.staying.credentials import new_credentials
from onceward.executor import link as links
from onceward.executor.link import (
    SECRET_BYTES,
    Link,
    LinkLostError,
    TaskCredentials,
    accept,
    connect,
)
from tests.support.waiting import wait_until


@contextmanager
def accepting() -> Iterator[tuple[tuple[str, int], TaskCredentials, list[Link | LinkLostError]]]:
    """A driver that accepts one connection: its address, its group's credentials, and what came of it."""
    context, credentials = new_credentials()
    came: list[Link | LinkLostError] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            try:
                came.append(accept(listening.accept()[0], context, credentials.secret))
            except LinkLostError as error:
                came.append(error)

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield listening.getsockname(), credentials, came
        finally:
            serving.join()
            for each in came:
                if isinstance(each, Link):
                    each.close()


@contextmanager
def linked() -> Iterator[tuple[Link, Link]]:
    """The driver's link and the task's."""
    with accepting() as (address, credentials, came):
        task = connect(address, credentials)
        wait_until(lambda: came, "the driver has accepted")
        assert isinstance(came[0], Link)
        yield came[0], task
        task.close()


class _Relay:
    """Passes one connection on, and keeps or changes what goes to the driver."""

    def __init__(self, driver: tuple[str, int]) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = self._listening.getsockname()
        self.seen = bytearray()
        self.flips = threading.Event()
        """Whether it changes the last byte of each piece."""
        self._driver = driver
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        task, _ = self._listening.accept()
        self._listening.close()
        driver = socket.create_connection(self._driver)
        threading.Thread(target=self._pass_on, args=(driver, task, False), daemon=True).start()
        self._pass_on(task, driver, True)

    def _pass_on(self, source: socket.socket, target: socket.socket, watched: bool) -> None:
        with source, target:
            try:
                while data := source.recv(65536):
                    if watched:
                        self.seen += data
                        if self.flips.is_set():
                            data = data[:-1] + bytes([data[-1] ^ 1])
                    target.sendall(data)
            except OSError:
                pass  # an end was closed


@contextmanager
def relayed() -> Iterator[tuple[_Relay, Link, Link, TaskCredentials]]:
    """A relay between the driver's link and the task's."""
    with accepting() as (address, credentials, came):
        relay = _Relay(address)
        task = connect(relay.address, credentials)
        wait_until(lambda: came, "the driver has accepted")
        assert isinstance(came[0], Link)
        yield relay, came[0], task, credentials
        task.close()


def listener(link: Link) -> tuple[threading.Thread, list[LinkLostError]]:
    """A thread that receives one message, and the error that it gets instead."""
    lost: list[LinkLostError] = []

    def listen() -> None:
        try:
            link.receive()
        except LinkLostError as error:
            lost.append(error)

    return threading.Thread(target=listen), lost


def test_messages_pass_in_both_directions_in_order() -> None:
    with linked() as (driver, task):
        for number in range(3):
            task.send({"vote": number})
            driver.send({"cut": number, "options": {"committed": {"a.0": 3}}})
        assert [driver.receive() for _ in range(3)] == [{"vote": 0}, {"vote": 1}, {"vote": 2}]
        assert [task.receive()["cut"] for _ in range(3)] == [0, 1, 2]


def test_long_messages_pass_in_both_directions_at_once() -> None:
    """Longer than a record of TLS and than the sockets' buffers: each side must read while it writes."""
    with linked() as (driver, task):
        text = "x" * 8_000_000
        senders = [threading.Thread(target=link.send, args=({"vote": text},)) for link in (driver, task)]
        received: list[object] = []
        readers = [
            threading.Thread(target=lambda link=link: received.append(link.receive()["vote"]))
            for link in (driver, task)
        ]
        for thread in (*senders, *readers):
            thread.start()
        for thread in (*senders, *readers):
            thread.join()
        assert received == [text, text]


def test_a_peer_without_the_secret_is_refused() -> None:
    with accepting() as (address, credentials, came):
        task = connect(address, replace(credentials, secret=os.urandom(SECRET_BYTES)))
        with pytest.raises(LinkLostError, match="closed"):
            task.receive()
        wait_until(lambda: came, "the driver has answered")
        assert "not a task of this group" in str(came[0])


def test_a_peer_that_speaks_no_tls_is_refused() -> None:
    with accepting() as (address, _, came):
        with socket.create_connection(address) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\n\r\n")  # some random bytes look like the beginning of a longer greeting
            wait_until(lambda: came, "the driver has answered")
        assert "broken" in str(came[0])


def test_a_peer_that_proves_itself_too_slowly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_PROOF_S", 0.5)
    with accepting() as (address, credentials, came):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=credentials.certificate)
        with context.wrap_socket(socket.create_connection(address)) as peer:
            stop = threading.Event()
            drip = threading.Thread(target=lambda: _drip(peer, stop))
            drip.start()
            wait_until(lambda: came, "the driver gives it up while it still sends")
            stop.set()
            drip.join()
    assert "has not proved" in str(came[0])


def _drip(peer: ssl.SSLSocket, stop: threading.Event) -> None:
    """Send a byte of a secret now and then, fewer than it has."""
    with suppress(OSError):
        for _ in range(SECRET_BYTES - 1):
            peer.sendall(b"x")
            if stop.wait(0.1):
                return
    stop.wait()


def test_a_task_notices_that_its_driver_is_another() -> None:
    with (
        accepting() as (address, credentials, _),
        pytest.raises(LinkLostError, match="not this task's driver"),
    ):
        connect(address, replace(new_credentials()[1], secret=credentials.secret))


def test_what_passes_cannot_be_read_on_the_way() -> None:
    with relayed() as (relay, driver, task, credentials):
        task.send({"vote": "canary"})
        assert driver.receive() == {"vote": "canary"}
        assert len(relay.seen) > len("canary")
        assert b"canary" not in relay.seen
        assert credentials.secret not in relay.seen
    assert repr(credentials.secret) not in repr(credentials)


def test_a_frame_that_was_changed_on_its_way_ends_the_connection() -> None:
    with relayed() as (relay, driver, task, _):
        task.send({"vote": 7})
        assert driver.receive() == {"vote": 7}
        relay.flips.set()
        task.send({"vote": 8})
        with pytest.raises(LinkLostError, match="broken"):
            driver.receive()


def test_a_silent_peer_is_lost_and_one_that_pings_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_PING_S", 0.05)
    monkeypatch.setattr(links, "LOST_S", 0.5)
    with linked() as (driver, task):
        listening, lost = listener(task)
        monkeypatch.setattr(driver, "send", lambda _message: None)
        listening.start()  # it pings while it waits; the driver does not answer
        listening.join()
        assert "nothing was heard" in str(lost[0])
        task.close()
        with pytest.raises(LinkLostError, match="closed"):
            driver.receive()  # it heard the pings until the task left


def test_a_closed_link_wakes_the_thread_that_receives() -> None:
    with linked() as (driver, task):
        listening, lost = listener(task)
        listening.start()
        driver.send({})
        task.close()
        listening.join()
        assert "closed" in str(lost[0])
        with pytest.raises(LinkLostError, match="closed"):
            task.send({"vote": 1})
