"""How to reach a coordinator: its address, and what a client proves there."""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import grpc

from onceward.client.channels import StubChannel
from onceward.client.tls import CoordinatorTls
from onceward.common.errors import ConfigurationError
from onceward.connections.secrets import Secret, reference_problem, resolve

__all__ = [
    "TOKEN_VARIABLE",
    "CoordinatorAccess",
    "is_token",
    "require_reference",
    "require_token",
    "with_known_token",
    "with_token",
]

TOKEN_VARIABLE = "ONCEWARD_TOKEN"

_TOKEN = re.compile(r"[!-~]{20,512}")


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorAccess:
    """Everything that a job is given to reach its coordinator. Has no secret: a token is a reference."""

    address: str | None = None
    """None for a coordinator in this process."""
    tls: CoordinatorTls | None = None
    token: str | None = None
    """``env:NAME`` or ``file:PATH``."""
    state_dir: str | os.PathLike[str] | None = None
    """Of the coordinator in this process."""

    def __post_init__(self) -> None:
        """Raises ConfigurationError for a token that is no reference."""
        if self.token is not None:
            require_reference(self.token, "token")

    @property
    def embedded(self) -> bool:
        return self.address is None

    def completed(self) -> Self:
        """With what the environment names in place of what is not given. Raises ConfigurationError."""
        token = self.token or os.environ.get(TOKEN_VARIABLE) or None
        if token is not None:
            require_reference(token, TOKEN_VARIABLE if self.token is None else "token")
        return replace(self, tls=self.tls or CoordinatorTls.from_environment(), token=token)


def require_reference(token: str, name: str) -> None:
    """Raise ConfigurationError if ``token`` is no reference. It is not repeated: it may be the token itself."""
    problem = reference_problem(token) if isinstance(token, str) else "is not text"
    if problem is not None:
        raise ConfigurationError(f"{name}: {problem}. Nothing was sent. Use env:NAME or file:PATH.")


def require_token(reference: str, address: str, tls: CoordinatorTls | None) -> None:
    """Raise ConfigurationError if the token cannot be read, or would be sent in plain text."""
    require_reference(reference, "token")
    if tls is None and not address.startswith("unix:"):
        raise ConfigurationError(
            f"A token for the coordinator at {address} would be sent in plain text, for everybody on the way to read. "
            "Nothing was sent. Use TLS (tls=, ONCEWARD_TLS_CA), or leave the token out."
        )
    _read(reference)


def with_token(channel: grpc.Channel, reference: str) -> grpc.Channel:
    """Return a channel for stubs that sends the token with each call. The token is read again for each, so that it can
    be replaced while a job runs; while it cannot be read, the last one is used."""
    last = _read(reference)

    def token() -> str:
        nonlocal last
        with suppress(ConfigurationError):  # perhaps in the middle of its replacement
            last = _read(reference)
        return str(last)

    return cast(grpc.Channel, _WithToken(channel, token))


def with_known_token(channel: grpc.Channel, token: str) -> grpc.Channel:
    """Return a channel for stubs that sends this token, which :func:`is_token`, with each call."""
    return cast(grpc.Channel, _WithToken(channel, lambda: token))


def is_token(text: str) -> bool:
    """True for what ``onceward token`` makes, and nothing that no header holds."""
    return _TOKEN.fullmatch(text) is not None


class _WithToken(StubChannel):
    def __init__(self, channel: grpc.Channel, token: Callable[[], str]) -> None:
        self._channel = channel
        self._token = token

    def method(self, kind: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(self._channel, kind)(*arguments, **options)
        return lambda *request, **given: call(*request, **given, metadata=(self._proof(),))

    def close(self) -> None:
        self._channel.close()

    def _proof(self) -> tuple[str, str]:
        return "authorization", f"Bearer {self._token()}"


def _read(reference: str) -> Secret:
    """Read the token. Raises ConfigurationError; gRPC's error for text that no header holds would show it."""
    token = resolve(reference, key="token", readers="the job's driver, or the person who runs the command")
    if not is_token(token):
        raise ConfigurationError(
            f"token: {reference} does not hold a token as onceward token makes it: 20 to 512 visible ASCII characters "
            "without spaces. Nothing was sent."
        )
    return token
