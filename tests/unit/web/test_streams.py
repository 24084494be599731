"""The page as a stream of events: when it is sent, when it ends, and that no view is looked at without a stream."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from onceward.client.session import connect
from onceward.common.errors import RefusedError
from onceward.protocol.events import CloseReason
from onceward.protocol.values import JobName
from onceward.watch.web import streams
from onceward.watch.web.application import HEADERS
from onceward.watch.web.streams import MAX_STREAMS, Stream, Streams
from tests.support.scripted import CoordinatorProcess, ScriptedDriver
from tests.unit.web.browser import ON_DEMAND, Event, Site, serving


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CoordinatorProcess, Site]]:
    with serving(tmp_path_factory.mktemp("streams")) as found:
        yield found


def finish(process: CoordinatorProcess, name: str) -> None:
    with connect(process.address) as client:
        driver = ScriptedDriver(client, JobName(name), settings=ON_DEMAND)
        driver.wait_committed(1)
        driver.close(CloseReason.FINISHED)


def page_with(events: Iterator[Event], text: str) -> Event:
    return next(event for event in events if event.kind == "message" and text in event.data)


@pytest.mark.slow
def test_a_stream_has_the_page_first_and_again_only_when_it_has_changed(place: tuple[CoordinatorProcess, Site]) -> None:
    process, site = place
    finish(process, "first")
    with site.stream("/?sort=name") as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert {name.lower(): value for name, value in HEADERS.items()}.items() <= stream.headers.items()
        events = iter(stream)
        first = page_with(events, 'id="job-first"')
        assert "</html>" in first.data
        unchanged = list(islice(events, 3))
        assert [event.kind for event in unchanged] == ["read"] * 3
        assert sorted({event.data for event in unchanged}) == [event.data for event in unchanged], "it was read again"
        finish(process, "second")
        second = page_with(events, 'id="job-second"')
        assert first.id != second.id


@pytest.mark.slow
def test_a_browser_that_has_the_page_does_not_get_it_again(place: tuple[CoordinatorProcess, Site]) -> None:
    _, site = place
    with site.stream("/cluster?") as stream:
        first = next(iter(stream))
    assert first.kind == "message"
    with site.stream("/jobs/absent") as stream:
        assert stream.status == 404
    with site.stream("/?q=none") as stream:
        known = next(iter(stream)).id
    with site.stream("/?q=none", **{"last-event-id": known}) as stream:
        assert next(iter(stream)).kind == "read"
    with site.stream("/?q=none", **{"last-event-id": "other"}) as stream:
        assert next(iter(stream)).kind == "message"


@pytest.mark.slow
def test_too_many_streams_take_no_page_from_others(place: tuple[CoordinatorProcess, Site]) -> None:
    _, site = place
    with ExitStack() as stack:
        opened = [stack.enter_context(site.stream(f"/?q={number}")) for number in range(MAX_STREAMS)]
        assert {stream.status for stream in opened} == {200}
        assert all(next(iter(stream)).kind == "message" for stream in opened)
        with site.stream("/") as one_more:
            assert one_more.status == 503
        assert site.get("/").status == 200


@pytest.mark.slow
def test_a_coordinator_that_ends_waits_for_no_stream(tmp_path: Path) -> None:
    with serving(tmp_path / "here") as (process, site), site.stream("/") as stream:
        events = iter(stream)
        next(events)
        process.terminate()
        assert {event.kind for event in events} <= {"read"}, "it ends as every stream does"
        process.wait()
        assert "graceful shutdown exceeded" not in process.log.read_text()


class View:
    """A view that counts who looks."""

    def __init__(self) -> None:
        self.looks = 0
        self.text = "<p>one</p>"
        self.problem: Exception | None = None

    def look(self) -> Response:
        self.looks += 1
        if self.problem is not None:
            raise self.problem
        return Response(self.text)


class Visitor:
    """Has one stream open, as the server serves it."""

    def __init__(self, served: Streams, view: View, *, key: str = "/") -> None:
        self.permitted = True
        self.sent: list[str] = []
        self.status = 0
        self._left = asyncio.Event()
        stream = Stream(served, ("", key), view.look, "", lambda: self.permitted)
        self.task = asyncio.create_task(stream({"type": "http"}, self._receive, self._send))

    def leave(self) -> None:
        self._left.set()

    async def sees(self, count: int, text: str = "") -> None:
        """Wait until this number of events with this text are sent."""
        while len([event for event in self.sent if text in event]) < count:
            assert not self.task.done(), self.sent
            await asyncio.sleep(0)

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["body"]:
            self.sent.append(message["body"].decode())


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_SOONEST_S", 0.0)
    monkeypatch.setattr(streams, "_SHARE", 0)


def run(scenario: Callable[[Streams, View], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await scenario(Streams(), View())

    asyncio.run(limited())


def test_all_streams_of_a_view_share_its_looks() -> None:
    """The pace is such that there is no second look meanwhile."""

    async def scenario(served: Streams, view: View) -> None:
        visitors = [Visitor(served, view) for _ in range(5)]
        for visitor in visitors:
            await visitor.sees(1, "data: <p>one</p>")
        assert view.looks == 1
        other = Visitor(served, view, key="/?q=x")
        await other.sees(1, "data: <p>one</p>")
        assert view.looks == 2
        served.close()
        await asyncio.gather(other.task, *(visitor.task for visitor in visitors))

    run(scenario)


@pytest.mark.usefixtures("often")
def test_a_view_is_not_looked_at_when_its_last_visitor_has_left() -> None:
    async def scenario(served: Streams, view: View) -> None:
        first, second = Visitor(served, view), Visitor(served, view)
        await first.sees(1, "<p>one</p>")
        first.leave()
        await first.task
        view.text = "<p>two</p>"
        await second.sees(1, "<p>two</p>")
        second.leave()
        await second.task
        await asyncio.to_thread(lambda: None)  # a look that had begun is over
        looks = view.looks
        for _ in range(1000):
            await asyncio.sleep(0)
        assert view.looks == looks
        again = Visitor(served, view)
        await again.sees(1, "<p>two</p>")
        again.leave()
        await again.task

    run(scenario)


@pytest.mark.usefixtures("often")
def test_a_view_that_cannot_be_shown_ends_its_streams_and_says_why_to_the_next() -> None:
    async def scenario(served: Streams, view: View) -> None:
        visitors = [Visitor(served, view) for _ in range(2)]
        for visitor in visitors:
            await visitor.sees(1, "<p>one</p>")
        view.problem = RefusedError("The coordinator does not know this token.")
        await asyncio.gather(*(visitor.task for visitor in visitors))
        late = Visitor(served, view)
        with pytest.raises(RefusedError):
            await late.task
        assert late.status == 0
        view.problem = None
        back = Visitor(served, view)
        await back.sees(1, "<p>one</p>")
        served.close()
        await back.task

    run(scenario)


@pytest.mark.usefixtures("often")
def test_a_stream_ends_when_its_visitor_may_see_it_no_more_or_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(served: Streams, view: View) -> None:
        one, other = Visitor(served, view), Visitor(served, view)
        await other.sees(1)
        one.permitted = False
        await one.task
        assert not other.task.done()
        monkeypatch.setattr(streams, "LONGEST_S", 0.0)
        short = Visitor(served, view)
        await short.task
        assert "<p>one</p>" in "".join(short.sent)
        served.close()
        await other.task
        late = Visitor(served, view)
        await late.task
        assert late.status == 503

    run(scenario)


@pytest.mark.usefixtures("often")
def test_time_alone_changes_nothing() -> None:
    page = '<p class="quiet read">As of <time datetime="{at}" data-local>{at}</time></p><b>{what}</b> <time>{at}</time>'

    async def scenario(served: Streams, view: View) -> None:
        view.text = page.format(at=1, what="x")
        visitor = Visitor(served, view)
        await visitor.sees(1, "<b>x</b>")
        view.text = page.format(at=2, what="x")
        await visitor.sees(1, "event: read\ndata: 2")
        view.text = page.format(at=3, what="y")
        await visitor.sees(1, "<b>y</b>")
        assert len([event for event in visitor.sent if "<b>" in event]) == 2
        with suppress(asyncio.CancelledError):
            visitor.leave()
            await visitor.task

    run(scenario)
