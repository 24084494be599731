"""An object store for tests: the S3 server of moto in this process, on loopback."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

__all__ = ["App", "Environ", "Held", "ObjectStore"]

Environ: TypeAlias = dict[str, Any]
App: TypeAlias = Callable[[Environ, Any], list[bytes]]
Disturbance: TypeAlias = Callable[[App, Environ, Any], list[bytes]]


class _Handler(WSGIRequestHandler):
    # One request to a connection: otherwise a server that has stopped would answer on those that are open.
    protocol_version = "HTTP/1.0"


class ObjectStore:
    """A store with one bucket. What it holds outlives :meth:`stop`."""

    bucket = "lake"
    access_key, secret_key = "access-key-of-tests", "secret-key-of-tests"

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._turn = threading.Lock()
        self._disturbances: list[Disturbance] = []
        self.port = 0
        self._server: BaseWSGIServer | None = None
        self.start()
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
        )
        self.client.create_bucket(Bucket=self.bucket)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> Mapping[str, str]:
        """How a client that shares no code with ours reaches it."""
        return {
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "aws_region": "us-east-1",
            "aws_endpoint_url": self.url,
            "aws_allow_http": "true",
        }

    def start(self) -> None:
        """Listen, after a stop on the same port."""
        if self._server is not None:
            return
        self._server = make_server("127.0.0.1", self.port, self._answer, threaded=True, request_handler=_Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @contextmanager
    def disturbed(self, disturbance: Disturbance) -> Iterator[None]:
        """Answer requests by a function that gets each one, and what answers it otherwise."""
        self._disturbances.append(disturbance)
        try:
            yield
        finally:
            self._disturbances.remove(disturbance)

    @contextmanager
    def holding(self, method: str, path: str) -> Iterator["Held"]:
        """Hold the first request whose path ends with ``path`` on its way. Others are answered meanwhile."""
        held = Held(method, path)
        with self.disturbed(held):
            try:
                yield held
            finally:
                held.release()

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", ())]

    def _answer(self, environ: Environ, start_response: Any) -> list[bytes]:
        answer: App = self._from_moto
        for disturbance in list(self._disturbances):
            answer = partial(disturbance, answer)
        return answer(environ, start_response)

    def _from_moto(self, environ: Environ, start_response: Any) -> list[bytes]:
        with self._turn:  # moto looks and writes in two steps, a store in one
            return [*self._app(environ, start_response)]


class Held:
    """A request that was sent and has not come to the store."""

    def __init__(self, method: str, path: str) -> None:
        self._method, self._path = method, path
        self._first = threading.Lock()
        self.arrived, self._released, self.answered = threading.Event(), threading.Event(), threading.Event()
        self.status = ""
        """Of the answer."""

    def __call__(self, answer: App, environ: Environ, start_response: Any) -> list[bytes]:
        this = environ["REQUEST_METHOD"] == self._method and environ["PATH_INFO"].endswith(self._path)
        if not this or not self._first.acquire(blocking=False):
            return answer(environ, start_response)

        def noting(status: str, *more: Any) -> Any:
            self.status = status
            return start_response(status, *more)

        self.arrived.set()
        assert self._released.wait(150)
        body = answer(environ, noting)
        self.answered.set()
        return body

    def release(self) -> None:
        self._released.set()
