"""Who calls, and whether it may: each call's peer by its certificate and token, and the refusals of what it may not."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc

from onceward.common.printable import log_fields, logger, printable
from onceward.coordinator.service.needs import Needs
from onceward.coordinator.service.rights import EVERYBODY, Credentials, Peer, Right, digest_of
from onceward.coordinator.service.rights_file import RightsFile
from onceward.protocol.answers import Note, Verdict
from onceward.protocol.values import NO_CHECKPOINT, NO_GENERATION, JobName

__all__ = ["NOTED_PER_HOUR", "OPEN", "TOKEN_HEADER", "TOKEN_SCHEME", "Caller", "Guard", "PeerRefusedError"]

_log = logger("onceward.rights")

TOKEN_HEADER = "authorization"
TOKEN_SCHEME = "Bearer "

NOTED_PER_HOUR = 10
"""Refusals that the history of one job takes. The history is finite: a peer without rights could push out of it what
others have done."""
_LINES_PER_S = 20
_SHOWN = 200
"""Characters of a certificate's names in a message."""


class PeerRefusedError(Exception):
    """The peer is unknown, or lacks a right. Nothing was done. The message never has its token."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        self.code = code
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call, with what proves it."""

    peer: Peer
    credentials: Credentials


@dataclass(eq=False, slots=True)
class _Stream:
    caller: Caller
    right: Right
    job: JobName
    method: str
    task: "asyncio.Task[Any]"
    lost: PeerRefusedError | None = None


class Guard:
    """Identifies peers and holds them to their rights. Without a file every peer may do everything.

    :param refused: shows a refusal in the history of a job; False if there is no such job.
    """

    def __init__(
        self, file: RightsFile | None, refused: Callable[[JobName, Note], bool] = lambda _job, _note: False
    ) -> None:
        self._file = file
        self._refused = refused
        self._rights = file.rights() if file is not None else None
        self._streams: set[_Stream] = set()
        self._calling: ContextVar[Caller] = ContextVar("calling")
        self._lines = _Lines()
        self._hour = 0
        self._noted: Counter[JobName] = Counter()

    @property
    def distinguishes(self) -> bool:
        """True if peers have names."""
        return self._file is not None

    @property
    def calling(self) -> str:
        """The name of the calling peer; empty if peers have no names."""
        return self._current().peer.name if self.distinguishes else ""

    def identify(self, context: "grpc.aio.ServicerContext[Any, Any]", method: str) -> Peer:
        """Return who calls. Raises PeerRefusedError for a peer that the file does not know."""
        if self._file is None:
            return EVERYBODY
        self._look()
        try:
            caller = self._caller(context)
        except PeerRefusedError as error:
            code, peer = error.code.name, context.peer()
            self._lines.warn({"event": "refused", "method": method, "code": code, "peer": peer, "detail": error})
            raise
        self._calling.set(caller)
        return caller.peer

    def known(self, context: "grpc.aio.ServicerContext[Any, Any]") -> Peer | None:
        """Return who calls, if the file knows the peer: for calls that anybody may make."""
        if self._file is None:
            return EVERYBODY
        self._look()
        with suppress(PeerRefusedError):
            return self._caller(context).peer
        return None

    def has_any(self, needs: Needs) -> bool:
        """True if the calling peer has one of the rights for some job."""
        return self._file is None or any(map(self._current().peer.may_somewhere, needs.rights))

    def refuse(self, method: str, needs: Needs, job: JobName | None) -> PeerRefusedError:
        """Return the refusal of a call of a peer that has none of the rights for any job."""
        what = f"{self._current().peer.name} lacks the right {' or '.join(needs.rights)}"
        if job is None:
            error = _lacks(f"{what} for any job, which {method} needs")
            self._lines.warn({"event": "refused", "method": method, "code": error.code.name, "detail": error})
        else:
            error = _lacks(f"{what} for job {job}")
            self._note(job, method, error)
        return error

    def require(self, method: str, needs: Needs, job: JobName, right: Right | None = None) -> None:
        """Raise PeerRefusedError unless the calling peer has ``right`` for the job; without it, one of the rights that
        the method needs."""
        if self._file is None:
            return
        caller = self._current()
        wanted = needs.rights if right is None else (right,)
        if not any(caller.peer.may(one, job) for one in wanted):
            error = _lacks(f"{caller.peer.name} lacks the right {' or '.join(wanted)} for job {job}")
            self._note(job, method, error)
            raise error

    def may_view(self) -> Callable[[str], bool] | None:
        """Return what is true of the jobs that the calling peer may view; None if it may view all."""
        if self._file is None:
            return None
        peer = self._current().peer
        return None if peer.may_everywhere(Right.VIEW) else lambda job: peer.may(Right.VIEW, job)

    @asynccontextmanager
    async def as_long_as_permitted(self, method: str, right: Right, job: JobName) -> AsyncIterator[None]:
        """End what runs inside when the peer loses the right, with PeerRefusedError."""
        task = asyncio.current_task()
        if self._file is None or task is None:
            yield
            return
        stream = _Stream(self._current(), right, job, method, task)
        self._streams.add(stream)
        try:
            yield
        except asyncio.CancelledError:
            if stream.lost is None:
                raise
            task.uncancel()
            raise stream.lost from None
        finally:
            self._streams.discard(stream)

    def _look(self) -> None:
        """Follow a change of the file: end the streams of peers that lost their right."""
        assert self._file is not None
        rights = self._file.rights()
        if rights is self._rights:
            return
        self._rights = rights
        for stream in self._streams:
            peer = rights.peer(stream.caller.credentials)
            if stream.lost is None and (peer is None or not peer.may(stream.right, stream.job)):
                name = stream.caller.peer.name
                stream.lost = _lacks(f"{name} has lost the right {stream.right} for job {stream.job}")
                self._note(stream.job, stream.method, stream.lost)
                stream.task.cancel()

    def _caller(self, context: "grpc.aio.ServicerContext[Any, Any]") -> Caller:
        assert self._rights is not None
        credentials = _credentials(context)
        peer = self._rights.peer(credentials)
        if peer is None:
            raise _unknown(credentials)
        return Caller(peer, credentials)

    def _current(self) -> Caller:
        caller = self._calling.get(None)
        if caller is None:  # a service that is served without its door
            raise PeerRefusedError(grpc.StatusCode.UNAUTHENTICATED, "the peer was not identified")
        return caller

    def _note(self, job: JobName, method: str, error: PeerRefusedError) -> None:
        self._lines.warn({"event": "refused", "method": method, "job": job, "code": error.code.name, "detail": error})
        note = Note(
            what=method,
            verdict=Verdict.REFUSED,
            generation=NO_GENERATION,
            checkpoint=NO_CHECKPOINT,
            participant="",
            detail=str(error),
        )
        hour = int(time.monotonic() / 3600)
        if hour != self._hour:
            self._hour = hour
            self._noted.clear()
        if self._noted.get(job, 0) < NOTED_PER_HOUR and self._refused(job, note):
            self._noted[job] += 1


class _Lines:
    """A flood of refusals takes no more than some lines of the log."""

    def __init__(self) -> None:
        self._second = 0
        self._count = 0

    def warn(self, fields: dict[str, object]) -> None:
        second = int(time.monotonic())
        if second != self._second:
            if self._count > _LINES_PER_S:
                _log.warning("%s", log_fields({"event": "refused_more", "count": self._count - _LINES_PER_S}))
            self._second, self._count = second, 0
        self._count += 1
        if self._count <= _LINES_PER_S:
            _log.warning("%s", log_fields(fields))


OPEN = Guard(None)
"""Permits everything."""


def _credentials(context: "grpc.aio.ServicerContext[Any, Any]") -> Credentials:
    """What the peer proves. Raises PeerRefusedError for a token that others could read."""
    proved = context.auth_context()
    encrypted = _texts(proved, "transport_security_type") == frozenset({"ssl"})
    token = None
    for key, value in context.invocation_metadata() or ():
        if key == TOKEN_HEADER and isinstance(value, str) and value.startswith(TOKEN_SCHEME):
            if not encrypted and not context.peer().startswith("unix:"):
                raise PeerRefusedError(
                    grpc.StatusCode.UNAUTHENTICATED,
                    "a token came in plain text, so others may know it now: replace it. Tokens are taken over TLS and "
                    "on a socket only. Nothing was done",
                )
            token = digest_of(value.removeprefix(TOKEN_SCHEME))
    if not encrypted:
        return Credentials(token=token)
    names = frozenset(name.lower() for name in _texts(proved, "peer_dns"))
    return Credentials(uris=_texts(proved, "peer_uri"), names=names, token=token)


def _texts(proved: Any, key: str) -> frozenset[str]:
    return frozenset(one.decode("utf-8", "replace") for one in proved.get(key, ()))


def _unknown(credentials: Credentials) -> PeerRefusedError:
    if credentials.token is not None:
        why = "its token is not in the rights file"
    elif known := sorted(credentials.uris | credentials.names):
        why = f"none of its certificate's names is in the rights file ({printable(', '.join(known))[:_SHOWN]})"
    else:
        why = "it shows neither a certificate with a URI or DNS name nor a token"
    return PeerRefusedError(grpc.StatusCode.UNAUTHENTICATED, f"the peer is unknown: {why}. Nothing was done")


def _lacks(what: str) -> PeerRefusedError:
    return PeerRefusedError(grpc.StatusCode.PERMISSION_DENIED, f"{what}. Nothing was done")
