"""Addresses to listen on."""

import os
import re
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.client.operators import OperatorClient
from onceward.common.errors import ConfigurationError, ExitCode
from onceward.coordinator.service.listen import parse_listen, scratch_for_sockets
from tests.support.processes import Process, Processes, free_address, listens
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("127.0.0.1:7878", "127.0.0.1:7878"),
        ("127.8.9.1:1", "127.8.9.1:1"),
        ("localhost:0", "localhost:0"),
        ("localhost:65535", "localhost:65535"),
        ("[::1]:7878", "[::1]:7878"),
    ],
)
def test_loopback_addresses_are_taken(text: str, target: str) -> None:
    assert parse_listen(text).target == target


@pytest.mark.parametrize("text", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[2001:db8::1]:1", "localhost.example.org:1"])
def test_other_addresses_need_the_flag(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--insecure-listen-anywhere"):
        parse_listen(text)
    assert parse_listen(text, anywhere=True).target == text


def test_a_socket_is_of_this_machine(tmp_path: Path) -> None:
    listen = parse_listen(f"unix:{tmp_path}/c.sock")
    assert listen.loopback
    assert listen.target == listen.with_port(1) == f"unix:{tmp_path}/c.sock"


@pytest.mark.parametrize("text", ["unix:", f"unix:/{'d' * 100}/c.sock"])
def test_a_path_that_the_kernel_does_not_take_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match="for example unix:/"):
        parse_listen(text)


@pytest.mark.parametrize("text", ["", "7878", "localhost", "::1:7878", "[::1]", "host:65536", ":1", "a b:c"])
def test_an_invalid_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match="for example"):
        parse_listen(text, anywhere=True)


def jobs_at(address: str, process: Process) -> list[object]:
    with OperatorClient(address, patience="60s") as people:
        assert process.running, process.tail()
        return list(people.jobs())


def test_a_coordinator_on_a_socket_is_reached_by_its_user_alone_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run" / "c.sock"
    for directory in ("one", "another"):
        (tmp_path / directory).mkdir(mode=0o700)
    address, former = f"unix:{path}", os.umask(0)
    try:
        with Processes(tmp_path / "one") as here, Processes(tmp_path / "another") as elsewhere:
            first = here.start_coordinator(address, {})
            assert jobs_at(address, first) == []
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert stat.S_ISSOCK(path.stat().st_mode)
            assert not path.stat().st_mode & 0o077
            second = elsewhere.start_coordinator(address, {})
            assert second.wait() == ExitCode.USAGE
            assert "something uses it" in second.tail()
            assert jobs_at(address, first) == [], "the second one took its socket"
            first.send(signal.SIGKILL)
            first.wait()
            again = here.start_coordinator(address, {})
            assert jobs_at(address, again) == []
            again.send(signal.SIGTERM)
            assert again.wait() == 0
            assert list(path.parent.iterdir()) == []
    finally:
        os.umask(former)


def dumps(directory: Path) -> Iterator[bytes]:
    """The content of each core file, whatever its name."""
    for file in directory.iterdir():
        if file.is_file() and (content := file.read_bytes()).startswith(b"\x7fELF"):
            yield content


def test_a_coordinator_leaves_no_core_dump_which_would_hold_its_passwords(tmp_path: Path) -> None:
    """Not even where the limit does not count, as where Linux passes dumps to a program: here it is raised again."""
    most = resource.RLIM_INFINITY if os.geteuid() == 0 else resource.getrlimit(resource.RLIMIT_CORE)[1]
    raised = f"import os, resource; resource.setrlimit(resource.RLIMIT_CORE, ({most}, {most}))"
    ours, other = tmp_path / "ours", tmp_path / "other"
    other.mkdir()
    subprocess.run([sys.executable, "-c", f"{raised}; name = 'cana' + 'ry'; os.abort()"], cwd=other, check=False)
    if not any(b"canary" in dump for dump in dumps(other)):
        pytest.skip("this system permits no core dumps, or keeps them elsewhere")
    code, address = f"{raised}\nfrom onceward.operate.cli import main\nmain()", free_address()
    with Processes(ours) as here:
        process = here.start_coordinator(address, {}, program=("-c", code))
        wait_until(lambda: listens(address) or not process.running, "it listens")
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        assert re.search(r"^Max core file size +0 ", limits, re.MULTILINE), limits
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (most, most))
        process.send(signal.SIGABRT)
        assert process.wait() == 128 + signal.SIGABRT
    assert not list(dumps(ours))


@pytest.mark.parametrize(("scratch", "chosen"), [("/short", "/short"), ("/long" * 20, "/tmp")])
def test_sockets_are_made_where_their_paths_are_short_enough(
    scratch: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", scratch)
    assert scratch_for_sockets() == chosen
