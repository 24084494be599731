"""A coordinator with a page, and what a browser gets from it."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

from onceward.client.session import connect
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName
from tests.support.scripted import CoordinatorProcess, ScriptedDriver
from tests.support.waiting import wait_until
from tests.unit.operate.halted import halted

__all__ = [
    "OFTEN",
    "ON_DEMAND",
    "Answer",
    "Event",
    "EventStream",
    "FourJobs",
    "Site",
    "four_jobs",
    "serving",
    "site_of",
]

ON_DEMAND = CheckpointSettings(interval=None, tolerable_failed_checkpoints=1000)
OFTEN = CheckpointSettings(interval="100ms", tolerable_failed_checkpoints=1000)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    text: str

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.text)

    @property
    def live(self) -> str:
        """The part that the script replaces, without its line breaks."""
        found = re.search(r"<main.*?</main>", self.text, re.DOTALL)
        assert found is not None, self.text
        return re.sub(r"\s+", " ", found[0])


@dataclass(frozen=True)
class Event:
    kind: str
    data: str
    id: str


class EventStream:
    """An open stream of the page. ``status``: of its answer."""

    def __init__(self, answer: HTTPResponse) -> None:
        self._answer = answer
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.getheaders()}

    def __iter__(self) -> Iterator[Event]:
        """Until it ends."""
        fields: dict[str, list[str]] = {}
        while line := self._answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields.setdefault(name, []).append(value)
            else:
                if "data" in fields:
                    kind, known = fields.get("event", ["message"]), fields.get("id", [""])
                    yield Event(kind[0], "\n".join(fields["data"]), known[0])
                fields = {}


class Site:
    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Raises OSError when nothing listens."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            given = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, given, answer.read().decode())
        finally:
            connection.close()

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator[EventStream]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("GET", path, headers={"accept": "text/event-stream", **headers})
            answer = connection.getresponse()
            with closing(answer):
                yield EventStream(answer)

    def json(self, path: str) -> Any:
        return self.get(path, accept="application/json").json


@contextmanager
def serving(
    directory: Path,
    *,
    port: int | None = None,
    web: str = "127.0.0.1:0",
    store_url: str = "",
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[CoordinatorProcess, Site]]:
    process = CoordinatorProcess(
        directory, port=port, store_url=store_url, environment=environment, options=("--web", web)
    )
    try:
        process.wait_ready()
        yield process, site_of(process)
    finally:
        process.end()


def site_of(process: CoordinatorProcess) -> Site:
    """The page of a coordinator that was started with ``--web``."""
    wait_until(lambda: "listens on" in process.log.read_text(), "the address is announced")
    found = re.findall(r"the page is at http://127\.0\.0\.1:(\d+)/", process.log.read_text())
    assert found, process.tail()
    return Site(int(found[-1]))


@dataclass(frozen=True)
class FourJobs:
    process: CoordinatorProcess
    site: Site
    running: ScriptedDriver


@contextmanager
def four_jobs(directory: Path, *, failed: str = "it failed") -> Iterator[FourJobs]:
    """A coordinator with a halted job (orders), a running, a restarting and a finished one.

    :param failed: why it restarts.
    """
    before = directory / "before"
    before.mkdir(mode=0o700)
    halted(before)
    store = f"sqlite:///{next(before.rglob('*.db'))}"
    with ExitStack() as stack:
        process, site = stack.enter_context(serving(directory / "coordinator", store_url=store))
        client = stack.enter_context(connect(process.address))
        running = ScriptedDriver(client, JobName("running"), settings=OFTEN)
        finished, restarting = (
            ScriptedDriver(client, JobName(name), settings=ON_DEMAND) for name in ("finished", "restarting")
        )
        for driver in (running, finished, restarting):
            driver.wait_committed(1)
        finished.close(CloseReason.FINISHED)
        restarting.session.abandon(failed, back_within_s=3600)
        yield FourJobs(process, site, running)
        running.close()
