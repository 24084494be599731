"""A REST catalogue for tests, which keeps its tables in a SQL catalogue of pyiceberg: what it refuses is the library's
word. It has no more endpoints than the tests need; Nessie (``nessie.py``) has all, and takes longer to start."""

import contextlib
import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest

__all__ = ["COMMIT_TABLES", "RestCatalogue"]

_NAMESPACES = "/v1/{prefix}/namespaces"
_TABLES = f"{_NAMESPACES}/{{namespace}}/tables"
_TABLE = f"{_TABLES}/{{table}}"
COMMIT_TABLES = "POST /v1/{prefix}/transactions/commit"
_ENDPOINTS = (
    f"POST {_NAMESPACES}", f"POST {_TABLES}", f"GET {_TABLE}", f"POST {_TABLE}", f"DELETE {_TABLE}", COMMIT_TABLES,
)  # fmt: skip


class RestCatalogue:
    """A context manager, on loopback."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None, *, port: int = 0) -> None:
        """``settings``: of the SQL catalogue. ``port``: 0 = a free one."""
        self._port = port
        place = {"uri": f"sqlite:///{directory}/served.db", "warehouse": f"file://{directory}/warehouse"}
        self._tables = SqlCatalog(**{"name": "served", **place, **(settings or {})})
        self.credentials: Mapping[str, str] = {}
        """What it hands out with each table, whether it is asked to or not."""
        self.asked: list[str] = []
        """The headers of requests that ask for credentials."""
        self.endpoints: Sequence[str] = _ENDPOINTS
        """What it says that it can; empty: it does not say."""
        self.at_once = True
        """Whether it commits several tables all or none, and not one after the other up to the first refusal."""
        self._made: list[list[str]] = []
        self._turn = threading.Lock()

    @property
    def settings(self) -> dict[str, str]:
        return {"type": "rest", "uri": f"http://127.0.0.1:{self._server.server_port}"}

    def __enter__(self) -> Self:
        catalogue = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None)

            def do_DELETE(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: Any) -> None:
                catalogue.asked += self.headers.get_all("X-Iceberg-Access-Delegation", [])
                code, answer = catalogue.answer(self.command, unquote(self.path), body)
                sent = json.dumps(answer).encode()
                with contextlib.suppress(ConnectionError):  # the process that asked has died, or its link is cut
                    self.send_response(code)
                    self.send_header("Content-Length", str(len(sent)))
                    self.end_headers()
                    self.wfile.write(sent)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def commits(self) -> list[list[str]]:
        """The tables of each commit that was made, by name."""
        return [sorted(tables) for tables in self._made]

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return the status of an answer and its body."""
        try:
            with self._turn:
                return 200, self._answer(method, path.split("?")[0].split("/")[2:], body)
        except NoSuchTableError as error:
            return 404, _error(404, error)
        except (CommitFailedException, NamespaceAlreadyExistsError) as error:
            return 409, _error(409, error)

    def _answer(self, method: str, path: Sequence[str], body: Any) -> Any:
        match method, *path:
            case "GET", "config":
                said = {"endpoints": self.endpoints} if self.endpoints else {}
                return {"defaults": {}, "overrides": {}, **said}
            case "POST", "namespaces":
                self._tables.create_namespace(".".join(body["namespace"]))
                return body
            case "POST", "namespaces", namespace, "tables":
                self._tables.create_table(f"{namespace}.{body['name']}", Schema.model_validate(body["schema"]))
                return self._loaded(f"{namespace}.{body['name']}")
            case "GET", "namespaces", namespace, "tables", name:
                return self._loaded(f"{namespace}.{name}")
            case "DELETE", "namespaces", namespace, "tables", name:
                self._tables.drop_table(f"{namespace}.{name}")
                return {}
            case "POST", "namespaces", namespace, "tables", name:
                self._commit([{**body, "identifier": {"namespace": [namespace], "name": name}}])
                return self._loaded(f"{namespace}.{name}")
            case "POST", "transactions", "commit":
                self._commit(body["table-changes"])
                return {}
        raise AssertionError(f"{method} {path} is none of its endpoints")

    def _loaded(self, name: str) -> Any:
        table = self._tables.load_table(name)
        return {
            "metadata-location": table.metadata_location,
            "metadata": json.loads(table.metadata.model_dump_json()),
            "config": dict(self.credentials),
            "storage-credentials": [{"prefix": "s3", "config": dict(self.credentials)}] if self.credentials else [],
        }

    def _commit(self, changes: Sequence[Any]) -> None:
        requests = [CommitTableRequest.model_validate(one) for one in changes]
        names = [".".join((*one.identifier.namespace.root, one.identifier.name)) for one in requests]
        tables = [self._tables.load_table(name) for name in names]
        if self.at_once:
            for table, request in zip(tables, requests, strict=True):
                for requirement in request.requirements:
                    requirement.validate(table.metadata)
        for table, request in zip(tables, requests, strict=True):
            self._tables.commit_table(table, request.requirements, request.updates)
        self._made.append(names)


def _error(code: int, error: Exception) -> Any:
    return {"error": {"message": str(error), "type": type(error).__name__, "code": code}}
