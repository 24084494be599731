"""Calls to one server through toxiproxy-python, adding what it lacks: timeouts, errors of 5xx, per-server addresses."""

from typing import Any, Literal

import requests
from toxiproxy.api import APIConsumer

from onceward.dev.errors import ToxiproxyError

__all__ = ["Api"]

_CALL_LIMIT_S = 10.0


class Api:
    """The HTTP interface of the server at ``host:port``."""

    def __init__(self, host: str, port: int) -> None:
        # The library keeps the address in the class, so each server gets its own class.
        self._consumer = type("Consumer", (APIConsumer,), {"host": host, "port": port})
        self._where = f"{host}:{port}"

    def call(self, method: Literal["get", "post", "delete"], path: str, body: Any = None) -> Any:
        """Return the answer's JSON, or None without a body. Raises `ToxiproxyError` for any answer but 2xx."""
        sent = {} if body is None else {"json": body}
        try:
            answer = getattr(self._consumer, method)(path, timeout=_CALL_LIMIT_S, **sent)
        except requests.RequestException as error:
            raise ToxiproxyError(
                f"The toxiproxy at {self._where} did not answer {method} {path}: {error}. Whether it carried out the "
                "request is unknown; start it again."
            ) from error
        except Exception as error:  # the library creates its errors with type(); Exception is their only base
            raise ToxiproxyError(f"The toxiproxy at {self._where} refused {method} {path} {body}: {error}") from error
        if not answer.ok:
            raise ToxiproxyError(
                f"The toxiproxy at {self._where} answered {answer.status_code} to {method} {path}: {answer.text[:300]}"
            )
        return answer.json() if answer.content else None
