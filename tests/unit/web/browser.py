"""A coordinator with a page, and what a browser gets from it."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.support.scripted import CoordinatorProcess
from tests.support.waiting import wait_until

__all__ = ["Answer", "Site", "serving"]


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
        wait_until(lambda: "listens on" in process.log.read_text(), "the address is announced")
        found = re.findall(r"the page is at http://127\.0\.0\.1:(\d+)/", process.log.read_text())
        assert found, process.tail()
        yield process, Site(int(found[-1]))
    finally:
        process.end()
