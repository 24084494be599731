"""The page's addresses. Nothing here changes a job; a form signs a visitor in and out."""

import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from onceward.client.access import is_token
from onceward.common.errors import CoordinatorLostError, OncewardError, RefusedError
from onceward.common.readable import duration
from onceward.protocol.requests import Ruling
from onceward.protocol.rulings import CONSEQUENCE, OPTION, resolve_command
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName, Outcome, ParticipantName
from onceward.watch.web.bars import PHASES, WIDTH, bars, legend
from onceward.watch.web.letters import letters_of
from onceward.watch.web.outputs import outputs_of
from onceward.watch.web.overview import InvalidQueryError, Order, first_wait, overview, parse_query
from onceward.watch.web.reading import CheckpointView, CoordinatorView, JobView, Reader
from onceward.watch.web.rendering import FILES, render
from onceward.watch.web.slots import Slot, positions_of, slots_of
from onceward.watch.web.streams import Stream, Streams
from onceward.watch.web.visitors import SESSION_S, Sessions
from onceward.wire.rows import CheckpointDescription, Leader, as_json

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
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept",
    "Connection": "close",
}
"""Of every answer, also of those that the server gives before it reads a request."""

_COOKIE = "__Host-onceward"
_COOKIE_RULES: Any = {"path": "/", "secure": True, "httponly": True, "samesite": "strict"}
_LONGEST_FORM = 4096
_LONGEST_ID = 18
_EXPIRES_SOON = timedelta(days=7)
"""As the alert does."""
_LOCAL = re.compile(r"/(?![/\\])[!-~]*")
"""A path of this page: a browser takes ``//`` for another host."""
_REFUSED = {
    "UNAUTHENTICATED": "The coordinator does not know this token.",
    "PERMISSION_DENIED": "This token may view no job.",
}


def application(reader: Reader, streams: Streams, host: str | None) -> ASGIApp:
    """:param host: what the page listens on without TLS; None with TLS. Only then can a visitor sign in."""
    views = _Views(reader, streams, encrypted=host is None)
    routes = [
        Route("/", views.live(views.jobs)),
        Route("/cluster", views.live(views.coordinator)),
        Route("/jobs/{job}", views.live(views.job)),
        Route("/jobs/{job}/checkpoints/{checkpoint}", views.live(views.checkpoint)),
        *(Route(path, _file) for path in FILES),
        *((Route("/sign-in", views.sign_in, methods=["POST"]),) if host is None else ()),
        *((Route("/sign-out", views.sign_out, methods=["POST"]),) if host is None else ()),
        Route("/{path:path}", _unknown),
    ]
    handlers: Any = {OncewardError: views.failed, InvalidQueryError: _unusable, _NothingHereError: _unknown}
    page = Starlette(routes=routes, exception_handlers=handlers)
    return page if host is None else _Guard(page, host)


class _NothingHereError(Exception):
    """The address names nothing."""


class _Views:
    """Each view is HTML, JSON or a stream."""

    def __init__(self, reader: Reader, streams: Streams, *, encrypted: bool) -> None:
        self._reader = reader
        self._streams = streams
        self._encrypted = encrypted
        self._sessions = Sessions()

    def live(self, view: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        """The same view, also as a stream."""

        async def answer(request: Request) -> Response:
            if request.method != "GET" or "text/event-stream" not in request.headers.get("accept", ""):
                return await run_in_threadpool(view, request)
            visitor = self._visitor(request)
            return Stream(
                self._streams,
                (visitor, f"{request.url.path}?{request.url.query}"),
                partial(view, request),
                known=request.headers.get("last-event-id", ""),
                permitted=lambda: self._visitor(request) == visitor,
            )

        return answer

    def jobs(self, request: Request) -> Response:
        try:
            given = parse_qsl(request.url.query, keep_blank_values=True, max_num_fields=20)
        except ValueError:
            raise InvalidQueryError("The address has too many parameters.") from None
        query = parse_query(given)
        found = self._reader.jobs(self._visitor(request))
        shown = overview(found.jobs, query, found.read_at)
        if _wants_json(request):
            return _json({**{name: getattr(shown, name) for name in ("total", "matching", "pages", "statuses")},
                          "query": asdict(query) | {"page": shown.query.page}, "jobs": shown.rows,
                          "read_at": found.read_at})  # fmt: skip
        return self._show(request, "jobs.html", shown=shown, read_at=found.read_at, orders=Order, first_wait=first_wait)

    def job(self, request: Request) -> Response:
        job = _job(request)
        _require_no_parameters(request, "A job's address")
        found = self._reader.job(self._visitor(request), job)
        choices = _choices(found, self._reader.address)
        shown = bars(found.checkpoints, found.read_at)
        if _wants_json(request):
            return _json({**_fields(found), "choices": choices})
        return self._show(
            request,
            "job.html",
            view=found,
            job=found.description.summary,
            read_at=found.read_at,
            bars=shown,
            outputs=outputs_of(found.description),
            letters=letters_of(found.description, found.checkpoints, self._reader.address),
            choices=choices,
            stake={} if found.halted_at is None else _stake(found.halted_at),
            settings=list(_settings(found.description.settings)),
            phases=legend(shown),
            width=WIDTH,
        )

    def checkpoint(self, request: Request) -> Response:
        job, number = _job(request), request.path_params["checkpoint"]
        if not (number.isascii() and number.isdigit() and len(number) <= _LONGEST_ID):
            raise _NothingHereError
        _require_no_parameters(request, "A checkpoint's address")
        found = self._reader.checkpoint(self._visitor(request), job, int(number))
        if _wants_json(request):
            return _json(_fields(found))
        (bar,) = bars([found.description.summary], found.read_at)
        return self._show(
            request,
            "checkpoint.html",
            view=found,
            one=found.description.summary,
            read_at=found.read_at,
            bar=bar,
            lists=slots_of(found.description),
            positions_of=positions_of,
            phases=PHASES,
            width=WIDTH,
        )

    def coordinator(self, request: Request) -> Response:
        _require_no_parameters(request, "This address")
        found = self._reader.coordinator(self._visitor(request))
        if _wants_json(request):
            return _json(_fields(found))
        return self._show(
            request,
            "cluster.html",
            view=found,
            one=found.description,
            soon=_EXPIRES_SOON,
            leads_to=_link(found.description.leader),
            read_at=found.read_at,
        )

    async def sign_in(self, request: Request) -> Response:
        """Begin a session for a token that the coordinator takes."""
        if not _sent_by_this_page(request):
            return _problem(request, 403, "You are not signed in", "The form was sent by another site.")
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _LONGEST_FORM:
                return _problem(request, 413, "You are not signed in", "The form is too long.")
        fields = dict(parse_qsl(body.decode("utf-8", "replace")))
        token, back = fields.get("token", "").strip(), fields.get("back", "/")
        if not is_token(token):
            return self._ask(request, "This is no token as onceward token makes it.", back)
        try:
            await run_in_threadpool(self._reader.admit, token)
        except RefusedError as error:
            return self._ask(request, _REFUSED.get(error.code, "The coordinator refused this token."), back)
        answer = RedirectResponse(back if _LOCAL.fullmatch(back) else "/", 303)
        answer.set_cookie(_COOKIE, self._sessions.begin(token), max_age=int(SESSION_S), **_COOKIE_RULES)
        return answer

    def sign_out(self, request: Request) -> Response:
        if not _sent_by_this_page(request):
            return _problem(request, 403, "You are still signed in", "The form was sent by another site.")
        self._sessions.end(request.cookies.get(_COOKIE, ""))
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(_COOKIE, **_COOKIE_RULES)
        return answer

    def failed(self, request: Request, error: Exception) -> Response:
        """Show what the coordinator's refusal or silence means for the visitor."""
        match error:
            case RefusedError(code="UNAUTHENTICATED"):
                shown = self._visitor(request)
                why = "The coordinator does not know your token any more." if shown else "Show a token to see the jobs."
                return self._ask(request, why, request.url.path)
            case RefusedError(code="PERMISSION_DENIED"):
                return _problem(request, 403, "You may not see this", "Your token lacks the right view for it.")
            case RefusedError():
                return _unknown(request)
            case _:
                return _away(request, error)

    def _visitor(self, request: Request) -> str:
        """The visitor's token; empty for none. Without TLS it is not even looked at."""
        if not self._encrypted:
            return ""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return token if is_token(token) else ""
        return self._sessions.token(request.cookies.get(_COOKIE, ""))

    def _show(self, request: Request, template: str, **values: Any) -> Response:
        signed_in = self._encrypted and bool(self._sessions.token(request.cookies.get(_COOKIE, "")))
        return _html(template, signed_in=signed_in, **values)

    def _ask(self, request: Request, why: str, back: str) -> Response:
        if _wants_json(request):
            answer = _json({"error": why}, 401)
        else:
            answer = _html("sign-in.html", 401, why=why, back=back)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer


class _Guard:
    """Answers only a browser that was sent to this host. With TLS, the browser checks the name itself.

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


def _file(request: Request) -> Response:
    content, kind = FILES[request.url.path]
    return Response(content, media_type=kind)


def _job(request: Request) -> JobName:
    """The job that the address names. Raises _NothingHereError."""
    try:
        return JobName(request.path_params["job"])
    except ValueError:
        raise _NothingHereError from None


def _require_no_parameters(request: Request, what: str) -> None:
    """Raises InvalidQueryError."""
    if request.url.query:
        raise InvalidQueryError(f"{what} has no parameters.")


def _link(leader: Leader | None) -> str:
    """The address of the leader's page, if a browser may follow it; empty else. It comes from the store."""
    return leader.web if leader is not None and urlsplit(leader.web).scheme in ("http", "https") else ""


def _fields(view: JobView | CheckpointView | CoordinatorView) -> dict[str, Any]:
    return {one.name: getattr(view, one.name) for one in fields(view)}


def _sent_by_this_page(request: Request) -> bool:
    """False for a form on another site, which could sign a visitor in with another token.

    A browser says where a form comes from; an older one only by Origin, which is "null" where a policy hides the
    referrer. Programs send neither.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


def _stake(halted_at: CheckpointDescription) -> Mapping[tuple[ParticipantName, int], Slot]:
    return {(found.participant, slot.number): slot for found in slots_of(halted_at) for slot in found.slots}


def _settings(settings: CheckpointSettings) -> Iterator[tuple[str, str]]:
    for one in fields(settings):
        value = getattr(settings, one.name)
        shown = "only on demand" if value is None else str(value)
        yield one.name, duration(value.total_seconds()) if isinstance(value, timedelta) else shown


def _wants_json(request: Request) -> bool:
    return "application/json" in request.headers.get("accept", "")


def _html(template: str, status: int = 200, *, signed_in: bool = False, **values: Any) -> Response:
    text = render(template, signed_in=signed_in, **values)
    return Response(text, status, media_type="text/html; charset=utf-8")


def _json(values: Any, status: int = 200) -> Response:
    return Response(as_json(values) + "\n", status, media_type="application/json")


def _problem(request: Request, status: int, title: str, detail: str) -> Response:
    if _wants_json(request):
        return _json({"error": f"{title}. {detail}"}, status)
    return _html("problem.html", status, title=title, detail=detail, back=status != 503)


def _unusable(request: Request, error: Exception) -> Response:
    return _problem(request, 400, "This address cannot be used", str(error))


def _unknown(request: Request, _error: Exception | None = None) -> Response:
    why = "No job or checkpoint has this name, or the address is wrong."
    return _problem(request, 404, "There is nothing here", why)


def _away(request: Request, error: Exception) -> Response:
    why = error.why if isinstance(error, CoordinatorLostError) else ""
    return _problem(
        request, 503, "The coordinator does not answer now", f"{why[:1].upper()}{why[1:]}." if why else str(error)
    )
