"""A REST catalogue that answers within a time, or raises: the library's own waits without a limit. And the one request
that the library has no call for: a commit of several tables.

Temporary credentials are not used: executors, which write the data files, do not reach the catalogue, and what is in no
process is in no error. They are not asked for, and dropped where a catalogue hands them out all the same.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from pyiceberg.catalog import WAREHOUSE_LOCATION
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.io import FileIO
from pyiceberg.table import CommitTableRequest
from pyiceberg.typedef import EMPTY_DICT, Properties
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

from onceward.sinks.iceberg.catalog import DELEGATION

__all__ = ["COMMIT_TABLES", "BoundedRestCatalog"]

LIMIT_S: Final = 60.0
"""For a connection, and for each part of an answer. Some catalogues take long for a commit; one that is made after this
time is found by the next look."""
_HANDED_OUT: Final = re.compile(
    r"(s3|client)\.(access-key-id|secret-access-key|session-token.*|signer.*|remote-signing.*)|(adls|gcs)\..*token.*"
    r"|adls\..*key.*|token",
    re.I,
)
"""Settings of a table by which it is reached with what the catalogue hands out."""
COMMIT_TABLES: Final = "POST /v1/{prefix}/transactions/commit"
"""As catalogues name it among their endpoints."""


class BoundedRestCatalog(RestCatalog):
    def _config_headers(self, session: Session) -> None:
        """The first that is done to a new session, before it asks for a token."""
        super()._config_headers(session)
        if session.headers[DELEGATION].lower() != "none":
            del session.headers[DELEGATION]
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Bounded())

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        """``properties``: those of a table, with what the catalogue hands out for it."""
        own = {key: value for key, value in properties.items() if not _HANDED_OUT.fullmatch(key)}
        return super()._load_file_io(own, location)

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
