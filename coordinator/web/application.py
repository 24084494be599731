"""The page's addresses. Only GET and HEAD are answered; nothing here changes anything."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from onceward.coordinator.errors import CoordinatorLostError, OncewardError, RefusedError
from onceward.coordinator.listings import as_json
from onceward.coordinator.protocol.requests import Ruling
from onceward.coordinator.protocol.values import JobName, Outcome
from onceward.coordinator.rulings import CONSEQUENCE, OPTION, resolve_command
from onceward.coordinator.web.bars import PHASES, WIDTH, bars
from onceward.coordinator.web.overview import InvalidQueryError, Order, first_wait, overview, parse_query
from onceward.coordinator.web.reading import JobView, Reader
from onceward.coordinator.web.rendering import FILES, render

__all__ = ["HEADERS", "application"]

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            *(f"{kind}-src 'self'" for kind in ("script", "style", "connect")),
            "img-src 'self' data:",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept",
    "Connection": "close",
}
"""Of every answer, also of those that the server gives before it reads a request."""


def application(reader: Reader, host: str) -> ASGIApp:
    """:param host: what the page listens on."""

    def show_jobs(request: Request) -> Response:
        try:
            query = parse_query(parse_qsl(request.url.query, keep_blank_values=True, max_num_fields=20))
        except ValueError as error:
            why = str(error) if isinstance(error, InvalidQueryError) else "The address has too many parameters."
            return _problem(request, 400, "This address cannot be used", why)
        try:
            found = reader.jobs()
        except OncewardError as error:
            return _away(request, error)
        shown = overview(found.jobs, query, found.read_at)
        if _wants_json(request):
            return _json({**{name: getattr(shown, name) for name in ("total", "matching", "pages", "statuses")},
                          "query": asdict(query) | {"page": shown.query.page}, "jobs": shown.rows,
                          "read_at": found.read_at})  # fmt: skip
        return _page("jobs.html", shown=shown, read_at=found.read_at, orders=Order, first_wait=first_wait)

    def show_job(request: Request) -> Response:
        try:
            job = JobName(request.path_params["job"])
        except ValueError:
            return _unknown(request)
        if request.url.query:
            return _problem(request, 400, "This address cannot be used", "A job's address has no parameters.")
        try:
            found = reader.job(job)
        except RefusedError:
            return _unknown(request)
        except OncewardError as error:
            return _away(request, error)
        choices = _choices(found, reader.address)
        if _wants_json(request):
            return _json({**{name: getattr(found, name) for name in JobView.__dataclass_fields__}, "choices": choices})
        return _page(
            "job.html",
            view=found,
            job=found.description.summary,
            read_at=found.read_at,
            bars=bars(found.checkpoints, found.read_at),
            choices=choices,
            phases=PHASES,
            width=WIDTH,
        )

    def show_file(request: Request) -> Response:
        content, kind = FILES[request.url.path]
        return Response(content, media_type=kind)

    routes = [
        Route("/", show_jobs),
        Route("/jobs/{job}", show_job),
        *(Route(path, show_file) for path in FILES),
        Route("/{path:path}", _unknown),
    ]
    return _Guard(Starlette(routes=routes), host)


class _Guard:
    """Answers only a browser that was sent to this host.

    A site whose name resolves to this machine (DNS rebinding) would otherwise read the page as its own. An address in
    numbers is no such name.
    """

    def __init__(self, inner: ASGIApp, host: str) -> None:
        self._inner = inner
        self._hosts = {host.lower(), "localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self._inner
        if scope["type"] == "http":
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(hosts) != 1 or not self._allowed(hosts[0]):
                answer = PlainTextResponse("This page is not served under this name.\n", 421)
        await answer(scope, receive, send)

    def _allowed(self, given: str) -> bool:
        host, _, port = given.rpartition(":") if not given.endswith("]") and ":" in given else (given, "", "")
        if port and not (port.isascii() and port.isdigit()):
            return False
        host = host.lower().removeprefix("[").removesuffix("]")
        if host in self._hosts:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True


def _choices(view: JobView, coordinator: str) -> Sequence[Mapping[str, str]]:
    """The commands that a person may choose from for each sink, the safest first."""
    found = []
    for sink, slots in view.description.unresolved.items():
        for ruling in OPTION:
            if ruling is Ruling.COMMITTED and Outcome.LOST in slots.values():
                continue  # proved not to commit
            command = resolve_command(view.description.summary.job, sink, ruling, slots, coordinator=coordinator)
            found.append({"ruling": ruling.value, "command": command, "consequence": CONSEQUENCE[ruling]})
    return found


def _wants_json(request: Request) -> bool:
    return "application/json" in request.headers.get("accept", "")


def _page(template: str, status: int = 200, **values: Any) -> Response:
    return Response(render(template, **values), status, media_type="text/html; charset=utf-8")


def _json(values: Any, status: int = 200) -> Response:
    return Response(as_json(values) + "\n", status, media_type="application/json")


def _problem(request: Request, status: int, title: str, detail: str) -> Response:
    if _wants_json(request):
        return _json({"error": f"{title}. {detail}"}, status)
    return _page("problem.html", status, title=title, detail=detail, back=status != 503)


def _unknown(request: Request) -> Response:
    return _problem(request, 404, "There is nothing here", "No job has this name, or the address is wrong.")


def _away(request: Request, error: OncewardError) -> Response:
    why = error.why if isinstance(error, CoordinatorLostError) else ""
    return _problem(
        request, 503, "The coordinator does not answer now", f"{why[:1].upper()}{why[1:]}." if why else str(error)
    )
