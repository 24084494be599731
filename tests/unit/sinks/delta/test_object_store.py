"""A Delta table in an object store: what races, what is killed, what is away, and which secrets stay secret."""

import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onceward import DeltaSink
from onceward.common.errors import ConfigurationError, PreflightError
from onceward.connections.storage import StorageError
from onceward.connectors.interfaces import JobContext
from onceward.dev.promises.sink_case import from_json
from onceward.protocol.values import JobName, Outcome
from onceward.sinks.delta.control.system import DeltaSystem
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.location import TableLocation, location_of
from onceward.sinks.lake.identifiers import staged_folder
from tests.support.object_store import App, Environ
from tests.unit.sinks.delta.tables import SECRET, ObjectTable
from tests.unit.sinks.delta.test_writer import JOB, context, one_column, writer_of
from tests.unit.sinks.lake.places import in_processes
from tests.unit.sinks.lake.test_committing import CHILD, committed, saved

CONTEXT = JobContext(job=JobName("orders"), checkpoint_timeout=timedelta(minutes=2))
ENTRY = "_delta_log/00000000000000000001.json"
CLAIMING = """
import json, sys
from onceward.common.errors import ClaimChangedError
from onceward.protocol.values import CheckpointId, Claim, Generation, JobName
from onceward.sinks.delta.control.system import DeltaSystem
from onceward.sinks.delta.location import location_of
claim = Claim(store_id=sys.argv[2], generation=Generation(1), completed=CheckpointId(0), holder="driver")
try:
    DeltaSystem.open(location_of("table", json.loads(sys.argv[1]))).take_claim(JobName("orders"), claim, ())
    print("taken")
except ClaimChangedError:
    print("refused")
"""
STAGING = """
import json, os, sys
import pyarrow as pa
from onceward.common import killpoints
from onceward.connections.object_storage import ObjectStorage
from onceward.sinks.delta.location import location_of
from tests.unit.sinks.delta.tables import Table
from tests.unit.sinks.delta.test_writer import context, one_column, writer_of
table = Table.__new__(Table)
table.location = location_of("table", json.loads(sys.argv[1]))
def dies(*_): os.kill(os.getpid(), 9)
if sys.argv[2] == "before":
    ObjectStorage.upload = dies
slot = writer_of(table).open(context())
slot.write(one_column([b"a"], pa.binary(), "value"))
slot.finish()
dies()
"""


class Together:
    """Lets requests to the same place come to the store at the same time."""

    def __init__(self, method: str, path: str, count: int) -> None:
        self._method, self._path = method, path
        self._all = threading.Barrier(count)
        self.met = 0

    def __call__(self, answer: App, environ: Environ, start_response: Any) -> list[bytes]:
        if environ["REQUEST_METHOD"] == self._method and self._path in environ["PATH_INFO"] and not self.met:
            self._all.wait(120)
            self.met = self._all.parties
        return answer(environ, start_response)


def ignoring_conditions(answer: App, environ: Environ, start_response: Any) -> list[bytes]:
    """A store that does not know conditional writes overwrites what is there."""
    environ.pop("HTTP_IF_NONE_MATCH", None)
    return answer(environ, start_response)


# -- several processes


def test_of_two_processes_that_claim_a_job_at_the_same_time_one_owns_it(object_table: ObjectTable) -> None:
    with object_table.store.disturbed(Together("PUT", "/claims/", 2)):
        found = in_processes(CLAIMING, [[object_table.place, "one"], [object_table.place, "two"]])
    assert sorted(found) == ["refused", "taken"]


def test_processes_that_commit_the_same_checkpoint_at_the_same_time_commit_it_once(object_table: ObjectTable) -> None:
    with object_table.jobs() as jobs:
        driver = jobs.driver()
        document = saved(driver.prepared([b"a"], [b"b"]), driver.author)
    with object_table.store.disturbed(Together("PUT", ENTRY, 2)):
        assert in_processes(CHILD, [["delta", object_table.place, document]] * 2) == ["committed"] * 2
    assert object_table.values() == [b"a", b"b"]
    assert object_table.now().version() == 1


@pytest.mark.parametrize("first", ["the successor", "the dead driver"])
def test_a_commit_of_a_dead_driver_that_comes_to_the_store_late_is_made_once(
    object_table: ObjectTable, first: str
) -> None:
    """It was held on the network for as long as its driver needed to die, and another one to recover."""
    store = object_table.store
    with object_table.jobs() as jobs, store.holding("PUT", ENTRY) as held:
        driver, successor = jobs.driver(), jobs.driver(generation=2)
        made = driver.prepared([b"a"])
        child = subprocess.Popen([sys.executable, "-c", CHILD, "delta", object_table.place, saved(made, driver.author)])
        assert held.arrived.wait(120)
        child.send_signal(signal.SIGKILL)
        child.wait(60)
        assert object_table.values() == []
        if first == "the successor":
            assert committed(successor, from_json(made)).outcome is Outcome.COMMITTED
            successor.commits(successor.prepared([b"b"], checkpoint=2))
        held.release()
        assert held.answered.wait(120)
        assert held.status.startswith("412" if first == "the successor" else "200")
        assert committed(successor, from_json(made)).outcome is Outcome.COMMITTED
    assert object_table.values() == ([b"a", b"b"] if first == "the successor" else [b"a"])


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_task_leaves_that_is_killed_around_its_upload_is_invisible_and_swept(
    object_table: ObjectTable, when: str
) -> None:
    ran = subprocess.run([sys.executable, "-c", STAGING, object_table.place, when], timeout=120)
    assert ran.returncode == -9
    assert len(object_table.files()) == (1 if when == "after" else 0)
    assert object_table.values() == []
    with object_table.jobs() as jobs:
        assert len(jobs.driver(job=JOB, generation=2).sweep()) == 1
    assert object_table.files() == set()
    assert not [key for key in object_table.objects() if key.startswith(staged_folder(JOB))]


# -- the store


def test_a_store_that_overwrites_instead_of_refusing_is_found(object_table: ObjectTable) -> None:
    session = object_table.sink().connect(CONTEXT)
    assert session.preflight() == []
    with object_table.store.disturbed(ignoring_conditions):
        (one,) = session.preflight()
    assert "two drivers could own the job" in one.message


def test_the_library_commits_only_where_there_is_no_entry_whatever_the_environment_asks_for(
    object_table: ObjectTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many recipes set this variable; it asks for commits that overwrite what another program has committed."""
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with object_table.jobs() as jobs:
        made = jobs.driver().prepared([b"a"])
        loaded = LoadedTable(object_table.location)
        object_table.append(b"stranger")
        with pytest.raises(StorageError, match="refused"):
            loaded.commit([], app="a", transaction=1, said={})
        assert object_table.now().transaction_version("a") is None
        assert committed(jobs.driver(), made).outcome is Outcome.COMMITTED
    assert object_table.values() == [b"a", b"stranger"]


def test_a_checkpoint_waits_for_a_store_that_is_away_and_is_committed_once(object_table: ObjectTable) -> None:
    store = object_table.store
    with object_table.jobs() as jobs:
        driver, system = jobs.driver(), object_table.system()
        made = driver.prepared([b"a"])
        store.stop()
        try:
            assert system.commit(driver.author, made, give_up=lambda: True) == []
            assert system.outcome(made[0]).outcome is Outcome.IN_DOUBT
            with pytest.raises(StorageError, match="could not be listed"):
                system.leftovers(jobs.job)
            asked = iter([False])

            def back() -> bool:
                if not next(asked, True):
                    store.start()
                return False

            (found,) = system.commit(driver.author, made, give_up=back)
        finally:
            store.start()
        assert found.outcome is Outcome.COMMITTED
        driver.commits(made)
    assert object_table.values() == [b"a"]


def test_a_bucket_that_is_gone_is_no_empty_table(object_table: ObjectTable) -> None:
    gone = TableLocation.of("s3://another-bucket/table", object_table.given)
    for call in (lambda: DeltaSystem.open(gone).leftovers(JobName("a")), lambda: LoadedTable(gone)):
        with pytest.raises(StorageError):
            call()


# -- tasks


def test_a_large_file_is_uploaded_in_parts_and_only_when_it_is_complete(object_table: ObjectTable) -> None:
    slot = writer_of(object_table, group_bytes=2**20).open(context())
    values = [os.urandom(2**20) for _ in range(18)]
    for value in values[:-1]:
        slot.write(one_column([value], pa.binary(), "value"))
    assert object_table.files() == set()
    slot.write(one_column(values[-1:], pa.binary(), "value"))
    vote = slot.finish()
    (file,) = vote.body["files"]
    head = object_table.store.client.head_object(
        Bucket=object_table.store.bucket, Key=f"{object_table.name}/{file['path']}"
    )
    assert head["ContentLength"] == file["size"] > 18 * 2**20
    assert head["ETag"].strip('"').endswith("-3"), "in parts"
    with object_table.jobs() as jobs:
        driver = jobs.driver(job=JOB)
        driver.commits(driver.pre_commit(vote))
    assert object_table.values() == sorted(values)


def test_a_slot_that_is_abandoned_leaves_nothing(object_table: ObjectTable) -> None:
    before = object_table.objects()
    for limits in ({}, {"group_bytes": 0, "file_bytes": 1}):
        slot = writer_of(object_table, **limits).open(context())
        slot.write(one_column([b"a"], pa.binary(), "value"))
        slot.abandon()
    assert object_table.objects() == before


def test_the_files_of_a_task_wait_where_spark_keeps_its_own(
    object_table: ObjectTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/another")
    slot = writer_of(object_table, group_bytes=0).open(context())
    slot.write(one_column([b"a"], pa.binary(), "value"))
    opened = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists() or link.is_symlink()]
    assert [one for one in opened if one.startswith(str(tmp_path))]
    slot.abandon()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/nowhere")
    slot = writer_of(object_table, group_bytes=0).open(context())
    with pytest.raises(StorageError, match="could not be made on this machine"):
        slot.write(one_column([b"a"], pa.binary(), "value"))


# -- credentials


def test_secrets_are_in_nothing_that_is_sent_stored_or_shown(
    object_table: ObjectTable, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = object_table.store.secret_key
    sink = object_table.sink()
    with object_table.jobs() as jobs:
        driver = jobs.driver()
        made = driver.prepared([b"a"])
        driver.commits(made)
        session = sink.connect(CONTEXT)
        shown = [
            repr(sink), repr(vars(sink)), repr(session), repr(vars(session)), repr(session.writes()),
            repr(pickle.dumps(session.write())), json.dumps(made[0].document.body), repr(driver.system),
            driver.system.describe(made[0]), repr(vars(driver.system)),
        ]  # fmt: skip
    shown += [caplog.text, *capfd.readouterr()]
    shown += [repr(object_table.store.client.get_object(Bucket=object_table.store.bucket, Key=key)["Body"].read())
              for key in object_table.store.keys(object_table.name)]  # fmt: skip
    assert [one for one in shown if secret in one] == []


def test_a_store_that_repeats_a_secret_in_its_answer_does_not_make_an_error_show_it(
    object_table: ObjectTable,
) -> None:
    """S3 answers with a token that it does not accept."""
    secret = object_table.store.secret_key

    def refusing(answer: App, environ: Environ, start_response: Any) -> list[bytes]:
        start_response("400 Bad Request", [("Content-Type", "application/xml")])
        return [f"<Error><Code>InvalidToken</Code><Token-0>{secret}</Token-0></Error>".encode()]

    system, storage = object_table.system(), object_table.location.storage()
    with object_table.jobs() as jobs:
        made = jobs.driver().prepared([b"a"])
    calls: list[Callable[[], object]] = [
        lambda: LoadedTable(object_table.location),
        lambda: system.leftovers(JobName("a")),
        lambda: storage.read("x"),
        lambda: storage.create("x", b""),
        lambda: object_table.sink().connect(CONTEXT),
    ]
    with object_table.store.disturbed(refusing):
        for call in calls:
            try:
                call()
            except (StorageError, PreflightError):
                shown = traceback.format_exc()
                assert "400 Bad Request" in shown
                assert secret not in shown
            else:
                pytest.fail("no error")
        assert secret not in system.outcome(made[0]).evidence


def test_a_secret_that_cannot_be_resolved_is_named_by_its_reference(
    object_table: ObjectTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SECRET.removeprefix("env:"))
    with pytest.raises(PreflightError, match="the environment variable ONCEWARD_TEST_SECRET_KEY"):
        object_table.sink().connect(CONTEXT)


def test_a_file_of_credentials_may_be_replaced_while_the_job_runs(object_table: ObjectTable, tmp_path: Path) -> None:
    used = set[str]()

    def noting(answer: App, environ: Environ, start_response: Any) -> list[bytes]:
        used.add(environ["HTTP_AUTHORIZATION"].partition("Credential=")[2].partition("/")[0])
        return answer(environ, start_response)

    key = tmp_path / "key"
    key.write_text("first\n")
    storage = TableLocation.of(
        object_table.location.uri, {**object_table.given, "aws_access_key_id": f"file:{key}"}
    ).storage()
    with object_table.store.disturbed(noting):
        storage.names("x")
        key.write_text("second\n")
        storage.names("x")
    assert used == {"first", "second"}


def test_what_no_option_says_is_taken_from_the_environment(
    object_table: ObjectTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_table.store.options.items():
        monkeypatch.setenv(name.upper(), value)
    bare = replace(object_table.location, options=TableLocation.of("s3://any/table").options)
    assert bare.storage().names("_delta_log") == object_table.location.storage().names("_delta_log") != []
    assert LoadedTable(bare).version == 0


@pytest.mark.parametrize(
    ("table", "storage", "said"),
    [
        ("s3://lake", {}, "named as s3://bucket/path"),
        ("s3://key:secret@lake/t", {}, "without credentials"),
        ("/data/t", {"aws_region": "r"}, "needs no options"),
        ("s3://lake/t", {"aws_s3_allow_unsafe_rename": "true"}, "aws_s3_allow_unsafe_rename is unknown"),
        ("s3://lake/t", {"AWS_SECRET_ACCESS_KEY": "hunter2"}, "must be a reference"),
        ("s3://lake/t", {"aws_session_token": "hunter2"}, "must be a reference"),
        ("s3://lake/t", {"aws_secret_access_key": "env:a-b"}, "the name of an environment variable"),
        ("s3://lake/t", {"aws_endpoint_url": "http://127.0.0.1:1"}, "is not encrypted"),
        ("s3://lake/t", {"aws_endpoint_url": "https://a:hunter2@host"}, "must not hold credentials"),
        ("s3://lake/t", {"aws_allow_http": "yes"}, '"true" or "false"'),
        ("s3://lake/t", {"aws_region": 1}, "aws_region must be text"),
        ("s3://lake/t", ["aws_region"], "mapping"),
    ],
)
def test_an_option_that_would_not_work_or_show_a_secret_is_refused(table: str, storage: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        DeltaSink(table, storage=storage)
    assert said in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_coordinator_opens_a_table_of_its_systems_file(object_table: ObjectTable) -> None:
    assert location_of("lake", json.loads(object_table.place)) == object_table.location
    assert TableLocation.of("s3a://lake/t/") == TableLocation.of("s3://lake/t")
