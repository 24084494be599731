"""The local toxiproxy does what it is asked to do, reports when it cannot, and never outlives its owner."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from onceward.dev.toxiproxy import LocalToxiproxy, Stream, Toxic, ToxiproxyError, toxiproxy_server
from onceward.dev.toxiproxy.binary import VERSION
from tests.support.toxiproxy import toxiproxy_or_skip
from tests.support.waiting import wait_until

SILENT = Toxic(type="timeout", stream=Stream.DOWN, attributes={"timeout": 0})


class Echo:
    """A server that echoes and records what it receives."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.heard = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # cutting the link resets the connection
            while data := connection.recv(1000):
                self.heard += data
                connection.sendall(data)


@pytest.fixture(scope="module")
def proxies() -> Iterator[LocalToxiproxy]:
    toxiproxy_or_skip()
    with LocalToxiproxy() as made:
        yield made


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    with closing(made.socket):
        yield made


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=0.5)


def says(address: str, data: bytes) -> bytes | None:
    """The answer; None when none arrives within half a second."""
    with connect(address) as connection:
        connection.sendall(data)
        try:
            return connection.recv(1000)
        except TimeoutError:
            return None


@pytest.mark.slow
def test_a_link_carries_bytes_refuses_when_it_is_cut_and_carries_again(proxies: LocalToxiproxy, echo: Echo) -> None:
    link = proxies.link("cut", echo.address)
    assert says(link.address, b"one") == b"one"
    link.cut()
    with pytest.raises(ConnectionRefusedError):
        connect(link.address)
    link.mend()
    assert says(link.address, b"two") == b"two"
    assert proxies.accepted()["cut"] == 2


@pytest.mark.slow
def test_an_answer_is_lost_and_its_request_is_not(proxies: LocalToxiproxy, echo: Echo) -> None:
    link = proxies.link("silent", echo.address)
    link.add(SILENT)
    assert says(link.address, b"heard") is None
    assert echo.heard == b"heard"
    link.heal()
    assert link.toxics() == []
    assert says(link.address, b"again") == b"again"


@pytest.mark.slow
def test_a_request_arrives_after_its_client_timed_out_and_left(proxies: LocalToxiproxy, echo: Echo) -> None:
    link = proxies.link("late", echo.address)
    link.add(Toxic(type="latency", stream=Stream.UP, attributes={"latency": 1000}))
    assert says(link.address, b"late") is None
    assert echo.heard == b""
    wait_until(lambda: echo.heard == b"late", "it arrives", 20)


@pytest.mark.slow
def test_a_link_can_lead_nowhere_and_back(proxies: LocalToxiproxy, echo: Echo) -> None:
    link = proxies.link("led", echo.address)
    closed = socket.create_server(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    link.lead(f"127.0.0.1:{port}")
    with connect(link.address) as connection:
        assert connection.recv(1) == b""
    link.lead(echo.address)
    assert says(link.address, b"x") == b"x"


@pytest.mark.slow
def test_a_refused_change_is_an_error_and_changes_nothing(proxies: LocalToxiproxy, echo: Echo) -> None:
    link = proxies.link("refusing", echo.address)
    with pytest.raises(ToxiproxyError, match="refused post"):
        link.add(Toxic(type="gremlins", stream=Stream.UP))
    with pytest.raises(ToxiproxyError):
        proxies.link("refusing", echo.address)
    with pytest.raises(ToxiproxyError, match="answered 5"):
        proxies.link("second", echo.address, listen=link.address)
    assert link.toxics() == []
    assert says(link.address, b"x") == b"x"


@pytest.mark.slow
def test_a_change_that_the_server_accepts_but_does_not_make_is_an_error(proxies: LocalToxiproxy, echo: Echo) -> None:
    link = proxies.link("deaf", echo.address)
    with pytest.raises(ToxiproxyError, match="was set to have the toxic"):
        link.add(Toxic(type="latency", stream=Stream.UP, attributes={"patience": 5}))  # no such attribute


@pytest.mark.slow
def test_a_server_that_is_gone_is_an_error(echo: Echo) -> None:
    with LocalToxiproxy() as own:
        link = own.link("gone", echo.address)
        os.kill(own.pid, signal.SIGKILL)
        with pytest.raises(ToxiproxyError, match="did not answer"):
            link.cut()


@pytest.mark.slow
def test_the_server_ends_with_its_owner_also_when_that_is_killed(proxies: LocalToxiproxy) -> None:
    program = (
        "import sys, time\n"
        "from onceward.dev.toxiproxy import LocalToxiproxy\n"
        "with LocalToxiproxy() as made: print(made.pid, flush=True); time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the server ends", 10)


def test_a_server_on_the_path_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The version that a program reports does not prove what it is."""
    planted = tmp_path / "toxiproxy-server"
    planted.write_text(f"#!/bin/sh\necho toxiproxy-server version {VERSION}\n: >'{tmp_path}/ran'\n")
    planted.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ONCEWARD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ToxiproxyError, match="Install Go"):
        toxiproxy_server()
    assert not (tmp_path / "ran").exists()


def test_without_go_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ONCEWARD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ToxiproxyError, match=f"need the toxiproxy server {VERSION}.*Install Go"):
        toxiproxy_server()
    assert not (tmp_path / "toxiproxy" / VERSION / "toxiproxy-server").exists()
