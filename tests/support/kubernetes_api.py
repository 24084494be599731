"""A stand-in for Kubernetes that starts a pod as a process: enough of its API for Spark's scheduler.

It allows what a Role allows and nothing else, and remembers each request.
"""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["Kubernetes", "kubernetes"]

Json = dict[str, Any]
_PATH = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?")


@dataclass
class Kubernetes:
    """One namespace."""

    allowed: frozenset[tuple[str, str]]
    """(verb, resource)."""
    directory: Path
    environment: Mapping[str, str]
    """What the image would set."""
    address: str = ""
    pods: dict[str, Json] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    """(verb, resource) of each request, allowed or not."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    events: list[Json] = field(default_factory=list)

    def put(self, pod: Json) -> None:
        """Add a pod, or change it."""
        with self.changed:
            kind = "MODIFIED" if pod["metadata"]["name"] in self.pods else "ADDED"
            self._remember(kind, pod)
            self.pods[pod["metadata"]["name"]] = pod

    def delete(self, name: str) -> None:
        with self.changed:
            self._remember("DELETED", self.pods.pop(name))
        process = self.processes.get(name)
        if process is not None:
            process.terminate()

    def start(self, pod: Json) -> None:
        """Start the pod's container."""
        name = pod["metadata"]["name"]
        (only,) = pod["spec"]["containers"]
        known = {"status.podIP": "127.0.0.1", "metadata.name": name}
        given = {
            one["name"]: known[one["valueFrom"]["fieldRef"]["fieldPath"]]
            if "valueFrom" in one
            else one.get("value", "")
            for one in only["env"]
        }
        work = self.directory / name
        work.mkdir()
        given["SPARK_LOCAL_DIRS"] = str(work)
        with (work / "log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*only.get("command", []), *only.get("args", [])],
                cwd=work,
                env={**os.environ, **self.environment, **given},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.put({**pod, "status": {"phase": "Running", "podIP": "127.0.0.1"}})

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)

    def after(self, count: int) -> list[Json]:
        """Return the events after the first ``count``; wait a moment if there is none."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.events) > count, 1)
            return self.events[count:]

    def _remember(self, kind: str, pod: Json) -> None:
        pod["metadata"]["resourceVersion"] = str(len(self.events) + 1)
        self.events.append({"type": kind, "object": pod})
        self.changed.notify_all()


def _matches(pod: Json, selector: str) -> bool:
    labels = pod["metadata"].get("labels", {})
    for part in filter(None, re.split(r",(?![^(]*\))", selector)):
        negated = re.fullmatch(r"(\S+)!=(\S*)", part)
        equal = re.fullmatch(r"([^=!\s]+)==?(\S*)", part)
        among = re.fullmatch(r"(\S+) (not)?in \((.*)\)", part)
        if negated:
            matched = labels.get(negated[1]) != negated[2]
        elif equal:
            matched = labels.get(equal[1]) == equal[2]
        elif among:
            matched = (labels.get(among[1]) in re.split(r",\s*", among[3])) is not bool(among[2])
        else:
            raise AssertionError(f"a selector that is not known here: {part}")
        if not matched:
            return False
    return True


def _handler(here: Kubernetes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._take("get")

        def do_POST(self) -> None:
            self._take("create")

        def do_PATCH(self) -> None:
            self._take("patch")

        def do_DELETE(self) -> None:
            self._take("delete")

        def _take(self, verb: str) -> None:
            address = urlsplit(self.path)
            found = _PATH.fullmatch(address.path)
            if found is None:
                self._answer(HTTPStatus.NOT_FOUND, {"kind": "Status", "code": 404})
                return
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            name = found["name"] or query.get("fieldSelector", "").partition("metadata.name=")[2]
            if verb == "get" and query.get("watch") == "true":
                verb = "watch"
            elif found["name"] is None:
                verb = {"get": "list", "delete": "deletecollection"}.get(verb, verb)
            here.requests.append((verb, found["resource"]))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if (verb, found["resource"]) not in here.allowed:
                self._answer(HTTPStatus.FORBIDDEN, {"kind": "Status", "code": 403, "message": f"{verb} is forbidden"})
                return
            self._do(verb, name, query.get("labelSelector", ""), json.loads(body) if body else {})

        def _do(self, verb: str, name: str, selector: str, sent: Json) -> None:
            chosen = [
                pod
                for pod in list(here.pods.values())
                if _matches(pod, selector) and name in ("", pod["metadata"]["name"])
            ]
            match verb:
                case "create":
                    here.put({**sent, "status": {"phase": "Pending"}})
                    self._answer(HTTPStatus.CREATED, sent)
                    here.start(sent)
                case "watch" if "Upgrade" in self.headers:
                    self._answer(HTTPStatus.OK, {})  # the client then watches without a web socket
                case "watch":
                    self._watch(selector, name)
                case "list":
                    version = {"resourceVersion": str(len(here.events))}
                    self._answer(
                        HTTPStatus.OK, {"kind": "PodList", "apiVersion": "v1", "metadata": version, "items": chosen}
                    )
                case _ if verb != "deletecollection" and not chosen:
                    self._answer(HTTPStatus.NOT_FOUND, {"kind": "Status", "code": 404})
                case "get":
                    self._answer(HTTPStatus.OK, chosen[0])
                case _:
                    for pod in chosen:
                        here.delete(pod["metadata"]["name"])
                    self._answer(HTTPStatus.OK, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

        def _watch(self, selector: str, name: str) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/json")
            self.send_header("Connection", "close")
            self.end_headers()
            sent, limit = 0, time.monotonic() + 60
            self.close_connection = True
            while time.monotonic() < limit:
                for event in here.after(sent):
                    sent += 1
                    pod = event["object"]
                    if _matches(pod, selector) and name in ("", pod["metadata"]["name"]):
                        self.wfile.write(json.dumps(event).encode() + b"\n")

        def _answer(self, status: HTTPStatus, content: Json) -> None:
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def handle(self) -> None:
            with suppress(ConnectionError):  # the client went away
                super().handle()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            return

    return Handler


@contextmanager
def kubernetes(rules: Sequence[Json], directory: Path, environment: Mapping[str, str]) -> Iterator[Kubernetes]:
    """Serve on loopback. ``rules``: those of a Role. ``environment``: what images set here."""
    allowed = frozenset(
        (verb, resource)
        for rule in rules
        if rule["apiGroups"] == [""]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    )
    directory.mkdir()
    here = Kubernetes(allowed=allowed, directory=directory, environment=environment)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(here))
    server.daemon_threads = True
    here.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield here
    finally:
        server.shutdown()
        server.server_close()
        here.end()
