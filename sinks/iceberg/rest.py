"""A REST catalogue that answers within a time, or raises: the library's own waits without a limit. And the one request
that the library has no call for: a commit of several tables."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from pyiceberg.catalog import WAREHOUSE_LOCATION
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.table import CommitTableRequest
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

__all__ = ["COMMIT_TABLES", "BoundedRestCatalog"]

LIMIT_S: Final = 60.0
"""For a connection, and for each part of an answer. Some catalogues take long for a commit; one that is made after this
time is found by the next look."""
COMMIT_TABLES: Final = "POST /v1/{prefix}/transactions/commit"
"""As catalogues name it among their endpoints."""


class BoundedRestCatalog(RestCatalog):
    def _config_headers(self, session: Session) -> None:
        """The first that is done to a new session, before it asks for a token."""
        super()._config_headers(session)
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Bounded())

    def endpoints(self) -> Collection[str]:
        """Ask what the catalogue can; empty if it does not say. Raises what the library raises."""
        warehouse = {key: self.properties[key] for key in (WAREHOUSE_LOCATION,) if key in self.properties}
        answer = self._session.get(self.url("config", prefixed=False), params=warehouse)
        answer.raise_for_status()
        return [str(one) for one in answer.json().get("endpoints") or ()]

    def commit_tables(self, requests: Sequence[CommitTableRequest]) -> None:
        """Commit to several tables at once (CommitTransactionRequest of Iceberg's REST specification). Raises
        CommitFailedException if a table has changed, and RESTError if it is not known whether they are committed."""
        changes = ",".join(one.model_dump_json() for one in requests)
        answer = self._session.post(self.url("transactions/commit"), data=f'{{"table-changes":[{changes}]}}'.encode())
        if not answer.ok:
            refused = CommitFailedException if answer.status_code == 409 else RESTError
            raise refused(f"{answer.status_code} {answer.reason}: {answer.text}")


class _Bounded(HTTPAdapter):
    def send(self, request: PreparedRequest, *arguments: Any, **named: Any) -> Response:
        if named.get("timeout") is None:
            named["timeout"] = LIMIT_S
        return super().send(request, *arguments, **named)
