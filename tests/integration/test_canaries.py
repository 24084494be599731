"""One whole run whose every secret is a canary: it is looked for in all that the run leaves and shows.

Each place is also searched for the job's name, which must be there: so it was read, and what is in it can be found.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from onceward.common.errors import ExitCode
from onceward.coordinator.service.rights import digest_of
from onceward.dev.kafka.topics import make_topics
from onceward.sinks.kafka.control.receipts import RECEIPT_TOPIC
from tests.support.canaries import Left, arguments_of, files_in, found_in
from tests.support.collector import Collector
from tests.support.commands import onceward
from tests.support.guarded import ROLES, Guarded, guarded_kafka, least_rights
from tests.support.places import Place, postgres_place
from tests.support.processes import CLUSTER, JobProcesses, Process, descendants
from tests.support.scripted import CoordinatorProcess
from tests.support.topics import Topics, assert_exactly_once, fill
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from onceward.dev.postgres.server import LocalPostgres

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

KAFKA, STORE, WRONG, DRIVER, PERSON = (
    f"c4n4ry{digest_of(who).hex()[:42]}" for who in ("kafka", "store", "wrong", "driver", "person")
)
"""No two have a half in common."""
SECRETS = {
    "the Kafka password": KAFKA,
    "the store's password": STORE,
    "a wrong password": WRONG,
    "the driver's token": DRIVER,
    "a person's token": PERSON,
}
RIGHTS = f"""
[peers.driver]
tokens = ["sha256:{digest_of(DRIVER).hex()}"]
drive = ["*"]
[peers.person]
tokens = ["sha256:{digest_of(PERSON).hex()}"]
view = ["*"]
operate = ["*"]
"""
FORMS = ("text/html", "application/json")
FIRST, MORE = 50, 5
"""Records of each partition, before and after the coordinator loses its database."""


class Run:
    """A broker with passwords, a store with a password, a coordinator with all that it can show, and a driver with
    Spark."""

    def __init__(
        self, stack: ExitStack, job: str, directory: Path, postgres: "LocalPostgres", collector: Collector
    ) -> None:
        self.job, self.directory, self.secrets = job, directory, directory / "secrets"
        (directory / "spark-events").mkdir()
        (directory / "tmp").mkdir()
        self.guarded: Guarded = stack.enter_context(guarded_kafka(self.secrets, "SASL_SSL", ROLES, KAFKA))
        make_topics(self.guarded.servers, [RECEIPT_TOPIC], partitions=1, replicas=1)
        self.topics = Topics(self.guarded.servers, job)
        self.source, self.sink = self.topics.create("in", 3), self.topics.create("out", 3)
        fill(self.topics, self.source, FIRST)
        names = {"INPUT": self.source, "OUTPUT": self.sink, "JOB": job, "GROUP": job}
        for role in ROLES:
            self.guarded.allow(role, least_rights(role, names, all_useful=True))
        self.guarded.files.grant(RIGHTS)
        for name, secret in (("store", STORE), ("wrong", WRONG), ("driver", DRIVER), ("person", PERSON)):
            (self.secrets / name).write_text(secret)
        self.trust = self.guarded.files.client_tls().context()
        self.key = self.guarded.files.server_tls().key.read_text().splitlines()[2]
        """The second line, because the first one is much the same in each key."""
        # a request of PLAIN holds the password itself
        self.config = {role: {**self.guarded.config(role), "sasl.mechanisms": "PLAIN"} for role in ROLES}
        self.place: Place = postgres_place(postgres)
        self.role = f"r{self.place.url[-16:]}"
        self.place.run(
            f"CREATE ROLE {self.role} LOGIN PASSWORD '{STORE}'",
            f"GRANT ALL ON SCHEMA {self.place.url[-17:]} TO {self.role}",
        )
        stack.callback(self.place.run, f"DROP OWNED BY {self.role}", f"DROP ROLE {self.role}")
        self.store_url = self.place.url.replace("//onceward@", f"//{self.role}@")
        # temporary files count too
        self.environment = {**collector.variables, "TMPDIR": str(directory / "tmp")}
        self.clusters = directory / "clusters.toml"
        self.clusters.write_text(
            f'[clusters.{CLUSTER}]\nbootstrap_servers = "{self.guarded.kafka.bootstrap_servers}"\n'
            f"[clusters.{CLUSTER}.config]\n"
            + "".join(f'"{key}" = "{value}"\n' for key, value in self.config["coordinator"].items())
        )

    def coordinator(self, name: str, password: str, **environment: str) -> CoordinatorProcess:
        tls = self.guarded.files.server_tls(client_ca=False)
        options = ["--store-password", password, "--clusters", str(self.clusters), "--traces"]
        options += ["--tls-cert", str(tls.certificate), "--tls-key", str(tls.key)]
        options += ["--rights", str(self.guarded.files.rights)]
        options += ["--web", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        return CoordinatorProcess(
            self.directory / name,
            store_url=self.store_url,
            options=options,
            environment={**self.environment, **environment},
        )

    def driver(self, coordinator: str) -> JobProcesses:
        spec: dict[str, Any] = {
            "config": self.config["driver"],
            "source_options": {"start": "earliest"},
            "coordinator": coordinator,
            "spark": True,
            "traces": True,
            "metrics": "127.0.0.1:0",
        }
        servers = self.guarded.kafka.bootstrap_servers
        return JobProcesses(self.directory, self.job, servers, self.source, self.sink, **spec)

    def driver_environment(self) -> dict[str, str]:
        logged = {"enabled": "true", "compress": "false", "dir": (self.directory / "spark-events").as_uri()}
        given = " ".join(f"--conf spark.eventLog.{name}={value}" for name, value in logged.items())
        return {
            **self.environment,
            "PYSPARK_SUBMIT_ARGS": f"--master local[2,4] {given} pyspark-shell",
            "ONCEWARD_TOKEN": self.reference("driver"),
            "ONCEWARD_TLS_CA": str(self.guarded.files.ca),
        }

    def copies(self, records: int, driver: Process) -> None:
        """Wait until the driver has copied ``records`` records of each partition."""
        wait_until(lambda: len(self.topics.read(self.sink)) == 3 * records or not driver.running, "it copies", 180)
        assert driver.running, driver.tail()

    def reference(self, secret: str) -> str:
        return f"file:{self.secrets / secret}"

    def command(self, *words: str, token: str = "person") -> "subprocess.CompletedProcess[str]":
        given = {"ONCEWARD_TOKEN": self.reference(token), "ONCEWARD_TLS_CA": str(self.guarded.files.ca)}
        return onceward(*words, **given)


def test_no_secret_is_in_anything_that_a_whole_run_leaves_or_shows(
    job: str, tmp_path: Path, postgres: "LocalPostgres", collector: Collector
) -> None:
    left: Left = {}
    with ExitStack() as stack:
        run = Run(stack, job, tmp_path, postgres, collector)
        refused = run.coordinator("refused", run.reference("wrong"))
        stack.callback(refused.end)
        assert refused.wait() == ExitCode.USAGE
        assert "password authentication failed" in refused.log.read_text()
        coordinator = run.coordinator("coordinator", "env:STORE_PASSWORD", STORE_PASSWORD=STORE)
        stack.callback(coordinator.end)
        coordinator.wait_ready()
        here = stack.enter_context(run.driver(coordinator.address))
        driver = here.start_driver("driver", "tests.support.driver", here.spec, run.driver_environment())
        run.copies(FIRST, driver)
        drop_sessions(run)
        wait_until(lambda: "term=2" in coordinator.log.read_text(), "it leads again", 120)
        fill(run.topics, run.source, MORE)
        run.copies(FIRST + MORE, driver)
        nothing_open = ("transactions", job, "--clusters", str(run.clusters), "--coordinator", coordinator.address)
        wait_until(lambda: "Nothing is open" in run.command(*nothing_open).stdout, "all is settled")

        for name, process in (("coordinator", coordinator), ("driver", driver)):
            left[f"arguments of the {name}"] = arguments_of(process.pid)
            left |= {f"arguments below the {name}, {pid}": arguments_of(pid) for pid, _ in descendants(process.pid)}
            left[f"metrics of the {name}"] = metrics(run, process)
        left |= dict(pages(run, coordinator))
        left |= dict(listings(run, coordinator.address))
        left |= {f"{place} while it ran": content for place, content in files_in(tmp_path, without=run.secrets).items()}
        stopped = run.command("stop", job, "--coordinator", coordinator.address)
        assert stopped.returncode == 0, stopped.stderr
        assert driver.wait() == 0, driver.tail()
        left |= dict(rows(run))
        # its log then holds what a Kafka client says at DEBUG of a login in plain text
        wait_until(
            lambda: "Authenticated as coordinator" in coordinator.log.read_text(), "it looks for late tasks", 120
        )
        coordinator.terminate()
        assert coordinator.wait() == 0, coordinator.tail()
        assert_exactly_once(run.topics, run.source, run.sink)
        left["output"] = repr(run.topics.read(run.sink)).encode()
        left |= dict(claims(run))
        left |= files_in(tmp_path, without=run.secrets)
        left["spans"] = b"\n".join(collector.requests)
        secrets = {**SECRETS, "the coordinator's key": run.key}
    assert found_in(left, secrets) == []
    assert unread(left, run) == []


def drop_sessions(run: Run) -> None:
    run.place.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{run.role}'")


def metrics(run: Run, process: Process) -> bytes:
    found = re.search(r"(?:metrics are at |event=metrics .*url=)(\S+)", process.log.read_text())
    assert found is not None, process.tail()
    return whole(httpx.get(found[1], verify=run.trust, timeout=60))


def whole(answer: httpx.Response) -> bytes:
    """The headers and the content."""
    return b"\n".join(name + b": " + value for name, value in answer.headers.raw) + b"\n" + answer.content


def pages(run: Run, coordinator: CoordinatorProcess) -> Iterator[tuple[str, bytes]]:
    """Everything to which the page leads, in each form, for a visitor who signs in; and what others get."""
    found = re.search(r"the page is at (\S+)", coordinator.log.read_text())
    assert found is not None, coordinator.tail()
    with httpx.Client(base_url=found[1], verify=run.trust, timeout=60) as visitor:
        for token, status in ((WRONG, 401), (PERSON, 303)):
            answer = visitor.post("/sign-in", data={"token": token})
            assert answer.status_code == status
            yield f"page /sign-in with status {status}", whole(answer)
        paths = ["/", "/cluster"]
        for path in paths:
            for form in FORMS:
                answer = visitor.get(path, headers={"accept": form})
                yield f"page {path} as {form}", whole(answer)
                linked = re.findall(r'(?:href|src)="(/[^"#?]*)', answer.text)
                paths += [path for path in dict.fromkeys(linked) if path not in paths]
        view = f"/jobs/{run.job}"
        with visitor.stream("GET", view, headers={"accept": "text/event-stream"}) as stream:
            lines: list[str] = []
            for line in stream.iter_lines():
                lines.append(line)
                if not line and any(one.startswith("data:") for one in lines):
                    break
            yield f"page {view} as a stream", "\n".join(lines).encode()


def listings(run: Run, address: str) -> Iterator[tuple[str, bytes]]:
    asked = [["jobs"], ["coordinators"], ["losses"]]
    asked += [[name, run.job] for name in ("checkpoints", "history")]
    asked.append(["transactions", run.job, "--clusters", str(run.clusters)])
    forms: list[list[str]] = [[], ["--json"]]
    commands = [("person", [*words, *form, "--coordinator", address]) for words in asked for form in forms]
    commands.append(("wrong", ["jobs", "--coordinator", address]))
    for password in ("store", "wrong"):
        doctor = ["doctor", "--store", run.store_url, "--store-password", run.reference(password)]
        commands.append(("person", doctor))
    for token, words in commands:
        done = run.command(*words, token=token)
        yield f"{token}: onceward {' '.join(words)}", (done.stdout + done.stderr).encode()


def rows(run: Run) -> Iterator[tuple[str, bytes]]:
    """Every row of the store, and what the database shows of the coordinator's session."""
    with run.place.raw() as raw:
        tables = raw.exec_driver_sql("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").scalars()
        selects = {f"table {table}": f"SELECT one::text FROM {table} one" for table in tables.all()}
        selects["sessions"] = f"SELECT one::text FROM pg_stat_activity one WHERE usename = '{run.role}'"
        for place, select in selects.items():
            yield place, "\n".join(raw.exec_driver_sql(select).scalars()).encode()


def claims(run: Run) -> Iterator[tuple[str, bytes]]:
    """Claims and receipts, as the broker keeps them."""
    for segment in run.guarded.kafka.directory.glob("**/__consumer_offsets-*/*.log"):
        yield f"offsets {segment.parent.name}", segment.read_bytes()


def unread(left: Mapping[str, bytes], run: Run) -> list[str]:
    """The places in which nothing of the run was found: they were not read, or what is in them cannot be searched."""
    job, role = run.job, run.role
    page = f"page /jobs/{job}"
    expected = [
        *((f"arguments of the {name}", word) for name, word in (("coordinator", role), ("driver", job))),
        *((f"metrics of the {name}", job) for name in ("coordinator", "driver")),
        *((f"page / as {form}", job) for form in FORMS),
        *((f"page /cluster as {form}", role) for form in FORMS),
        *((f"{page} as {form}", job) for form in (*FORMS, "a stream")),
        *((f"{page}/checkpoints/* as {form}", job) for form in FORMS),
        ("page /sign-in with status 401", "does not know this token"),
        *((f"person: onceward {name}", job) for name in ("jobs --coordinator", "jobs --json")),
        ("person: onceward history", "Generations"),
        ("person: onceward checkpoints", "settled"),
        ("person: onceward coordinators --coordinator", role),
        ("person: onceward coordinators --json", role),
        ("person: onceward transactions", "Nothing is open"),
        ("person: onceward doctor", f"{role} may read and write its tables"),
        ("person: onceward doctor", f'password authentication failed for user "{role}"'),
        ("wrong: onceward jobs", "its token is not in the rights file"),
        *((f"file {name}", job) for name in ("coordinator/coordinator.log", "driver.log", "events", "spark-events/")),
        ("file refused/coordinator.log", role),
        *((f"table {name}", job) for name in ("jobs", "checkpoints", "generations", "history")),
        ("sessions", role),
        ("offsets ", f"{job}.claim"),
        *(("spans", word) for word in (job, "onceward-coordinator", "onceward-driver")),
    ]
    return [
        f"{word!r} in {place}"
        for place, word in expected
        if not any(fnmatchcase(name, f"{place}*") and word.encode() in content for name, content in left.items())
    ]
