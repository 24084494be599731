"""Calls to the coordinator: each has a deadline, is retried while its outcome is unknown, and is refused with a
reason."""

import re
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from onceward.client.access import require_token, with_token
from onceward.client.following import following
from onceward.client.obstacles import Obstacles
from onceward.client.tls import CoordinatorTls, renewing
from onceward.common.backoff import Backoff
from onceward.common.errors import (
    CheckpointFailedError,
    ConfigurationError,
    CoordinatorLostError,
    FencedError,
    GenerationEndedError,
    OncewardError,
    RefusedError,
)
from onceward.common.links import Links
from onceward.protocol.answers import Answer
from onceward.wire.channel import KeepAlive
from onceward.wire.limits import MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES
from onceward.wire.malformed import MalformedError

__all__ = ["CALL_TIMEOUT_S", "REFUSALS", "Caller", "addresses_of", "call_backoff", "generation_over", "open_channel"]

T = TypeVar("T")

_ADDRESS = re.compile(r"unix:.+|(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(?P<port>[0-9]{1,5})")

REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
"""Codes with which the coordinator has rejected a call without carrying it out. After any other code the outcome is
unknown: a stopping coordinator answers CANCELLED, a broken connection may look like INTERNAL. Retrying is harmless."""

CALL_TIMEOUT_S = 8.0
"""Limit of one attempt. After it the outcome is unknown, and the call is retried."""
_CONNECT_TIMEOUT_MS = 8_000
"""Limit for the TCP connection and the HTTP/2 handshake that follows."""
_FRAME_ALLOWANCE = 1024
_LOOK_S = 0.5
"""How long a call waits to learn what keeps it from several addresses."""


def call_backoff() -> Backoff:
    """Return the pauses between attempts of a call or a stream."""
    return Backoff(first=0.05, longest=1.0)


def addresses_of(address: str) -> list[str]:
    """The addresses in ``address``, which commas separate. Raises ConfigurationError for one that gRPC would retry in
    vain until the patience ends."""
    # a socket's path may hold a comma
    addresses = [address] if address.startswith("unix:") else [one.strip() for one in address.split(",")]
    for one in addresses:
        match = _ADDRESS.fullmatch(one)
        if match is None or not 0 < int(match["port"] or 1) < 65536:
            raise ConfigurationError(
                f"coordinator: {one!r} is no address. Nothing was started. Write HOST:PORT or [IPV6]:PORT, for example "
                "localhost:7878; commas separate the addresses of coordinators that share a store"
            )
    return addresses


def open_channel(
    address: str, keep_alive: KeepAlive | None = None, tls: CoordinatorTls | None = None, token: str | None = None
) -> grpc.Channel:
    """Open a channel to ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:PATH``, lazily; the latter never uses TLS. To several
    addresses, which commas separate, it follows the coordinator that leads. ``token`` is a reference. Raises
    ConfigurationError."""
    addresses = addresses_of(address)
    if token is not None:
        require_token(token, address, tls)
        return with_token(open_channel(address, keep_alive, tls), token)
    if len(addresses) == 1:
        return _open_one(addresses[0], keep_alive, tls)
    return following(addresses, lambda one: _open_one(one, keep_alive, tls))


def _open_one(address: str, keep_alive: KeepAlive | None, tls: CoordinatorTls | None) -> grpc.Channel:
    options = [
        # proxy settings in the environment are meant for the web
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 50),
        # Also limits how long a connection may take: with less, a distant driver would never connect.
        ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
        # own subchannel pool: share no connection with an earlier, closed client
        ("grpc.use_local_subchannel_pool", 1),
        *(keep_alive or KeepAlive()).client_arguments(),
    ]
    if tls is None or address.startswith("unix:"):
        return grpc.insecure_channel(address, options)
    tls.context()  # names a file that cannot be used
    return renewing(lambda: grpc.secure_channel(address, tls.credentials(), options), tls.version)


class Caller:
    """Calls with retries. Thread-safe.

    :param patience_s: seconds after which an unanswered call raises CoordinatorLostError.
    :param broken: returns the error of a coordinator in this process that has failed permanently; None while it works.
    :param links: records that the coordinator does not answer.
    :param tls: what ``channel`` uses, to find out why it does not connect.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        address: str,
        *,
        patience_s: float,
        broken: Callable[[], OncewardError | None],
        links: Links | None = None,
        tls: CoordinatorTls | None = None,
    ) -> None:
        self.channel = channel
        self.address = address
        self._tls = tls
        self._reached = False
        self.patience_s = patience_s
        self.link = f"coordinator at {address}"
        self.links = links or Links()
        self._broken = broken
        self._closed = threading.Event()
        self._waiting = ""
        self._obstacles = Obstacles(lambda: addresses_of(self.address), tls, self._report)

    def call(
        self,
        method: Callable[..., Any],
        request: Message,
        decode: Callable[[Any], T],
        *,
        doing: str,
        patience_s: float | None = None,
    ) -> T:
        """Call. Raises CoordinatorLostError, RefusedError (malformed, unknown job), CheckpointFailedError (too
        large)."""
        size = request.ByteSize()
        if size > MAX_REQUEST_BYTES - _FRAME_ALLOWANCE:
            raise CheckpointFailedError(
                f"The request for {doing} takes {size} bytes, the coordinator takes at most {MAX_REQUEST_BYTES}. "
                "Nothing was sent; the checkpoint is declined and its records are written again. Use fewer or "
                "larger slots, or smaller documents."
            )
        limit = self.patience_s if patience_s is None else patience_s
        begun, backoff = time.monotonic(), call_backoff()
        while True:
            self.require_working(doing)
            try:
                answer = decode(method(request, timeout=CALL_TIMEOUT_S))
            except grpc.RpcError as error:
                code, detail = error.code(), error.details() or ""
                if code in REFUSALS:
                    raise self.refused(code, detail, doing) from None
                if code is grpc.StatusCode.UNAVAILABLE and not self._reached:
                    self._require_encryption(doing)
            except MalformedError as error:
                raise self.not_understood(error, doing) from None
            except ValueError:  # gRPC raises this for a closed channel
                raise self._lost(doing, "the client was closed") from None
            else:
                self._reached = True
                self.worked()
                return answer
            if time.monotonic() - begun >= limit:
                raise self._lost(doing, f"it did not answer for {limit:g} s: {self.last_reason(code, detail)}")
            self.failed(code, detail, waiting=f"{doing}, given up after {limit:g} s")
            self._closed.wait(backoff.next())

    def require_working(self, doing: str) -> None:
        """Raise CoordinatorLostError when no answer can ever come."""
        failure = self._broken()
        if failure is not None:
            raise self._lost(doing, f"its store failed: {failure}".rstrip(".")) from failure
        if self._closed.is_set():
            raise self._lost(doing, "the client was closed")

    def worked(self) -> None:
        """Report an attempt with an answer."""
        self.links.worked(self.link)
        self._obstacles.worked()

    def failed(self, code: grpc.StatusCode, detail: str, *, waiting: str) -> None:
        """Report an attempt without an answer. If TLS is at fault, the log says so as soon as that is known."""
        self._waiting = waiting
        if not self._reached:
            self._obstacles.report()
        elif code is grpc.StatusCode.UNAVAILABLE and self._tls is not None:
            self._obstacles.look_aside()
        self.links.failed(self.link, self._obstacles.why or f"{code.name}: {detail}", waiting=waiting)

    def last_reason(self, code: grpc.StatusCode, detail: str) -> str:
        """Why there was no answer, for an error."""
        if code is grpc.StatusCode.UNAVAILABLE and self._tls is not None:
            self._obstacles.look(_LOOK_S)
        return self._obstacles.why or f"{code.name}: {detail}"

    @property
    def remedy(self) -> str:
        """What to do about a lost coordinator."""
        if not self._obstacles.why:
            return "Start the coordinator, then the job."
        return (
            "A decided checkpoint is committed when the job runs again. Renew or correct what is named, then start the "
            "job."
        )

    def _report(self, why: str) -> None:
        self.links.failed(self.link, why, waiting=self._waiting, news=True)

    def _require_encryption(self, doing: str) -> None:
        """Raise ConfigurationError when both sides cannot agree on TLS. Afterwards a replaced certificate may be at
        fault, which passes, so only the first connection is judged."""
        self._obstacles.look(_LOOK_S)
        if self._obstacles.insurmountable:  # else one of them may only be down
            raise ConfigurationError(
                f"The coordinator at {self.address} cannot be reached for {doing}: {self._obstacles.why}. Nothing was "
                "sent."
            )

    def close(self) -> None:
        self._closed.set()
        self.channel.close()

    def _lost(self, doing: str, why: str) -> CoordinatorLostError:
        lost = CoordinatorLostError(
            f"The coordinator at {self.address} is lost while {doing}: {why}. Whether the last call was carried out is "
            f"unknown; nothing is guessed, no pre-committed transaction is ended. {self.remedy}"
        )
        lost.why = why
        return lost

    def refused(self, code: grpc.StatusCode, detail: str, doing: str) -> OncewardError:
        refused = RefusedError(
            f"The coordinator at {self.address} refused {doing}: {code.name}: {detail}. Its state is unchanged."
        )
        refused.code = code.name
        return refused

    def not_understood(self, error: MalformedError, doing: str) -> OncewardError:
        return CoordinatorLostError(
            f"The coordinator at {self.address} answered {doing} with something that this version of onceward does not "
            f"know ({error}). Nothing is guessed. Use the same version on both sides."
        )


def generation_over(job: str, generation: int, answer: Answer) -> OncewardError:
    """Return the error for a FENCED ``answer``: GenerationEndedError if the driver may come back, else FencedError."""
    said = f"Generation {generation} of job {job} is over: {answer.detail}."
    if answer.may_return:
        return GenerationEndedError(f"{said} Completed checkpoints are settled; the rest is aborted and read again.")
    return FencedError(
        f"{said} The next generation settles completed checkpoints; this process ends no more transactions."
    )
