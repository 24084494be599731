"""A REST catalogue that answers within a time, or raises: the library's own waits without a limit."""

from typing import Any, Final

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

__all__ = ["BoundedRestCatalog"]

LIMIT_S: Final = 60.0
"""For a connection, and for each part of an answer. Some catalogues take long for a commit; one that is made after this
time is found by the next look."""


class BoundedRestCatalog(RestCatalog):
    def _config_headers(self, session: Session) -> None:
        """The first that is done to a new session, before it asks for a token."""
        super()._config_headers(session)
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Bounded())


class _Bounded(HTTPAdapter):
    def send(self, request: PreparedRequest, *arguments: Any, **named: Any) -> Response:
        if named.get("timeout") is None:
            named["timeout"] = LIMIT_S
        return super().send(request, *arguments, **named)
