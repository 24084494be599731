"""Dead letters on the real broker, after they were written: listed by reason, and brought back."""

import json
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import Message, Producer

from onceward import per_record
from onceward.common.errors import ExitCode
from tests.integration.test_letters import BAD, GOOD, Bench, good, marked, parsed
from tests.support.commands import onceward
from tests.support.processes import Processes, armed_with
from tests.support.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def bench(topics: Topics, job: str, spark: "SparkSession", tmp_path: Path) -> Bench:
    made = Bench(topics, job, spark, tmp_path)
    made.pipeline(per_record(parsed)).run()
    assert made.letters() == BAD
    return made


def command(bench: Bench, name: str, *words: str) -> Any:
    brokers = ("--servers", bench.topics.servers)
    return onceward(name, bench.job, "--state-dir", str(bench.directory / "state"), *brokers, *words)


def test_letters_are_listed_by_reason(bench: Bench) -> None:
    listed = json.loads(command(bench, "letters", "--json").stdout)
    (reason,) = listed["reasons"]
    assert listed["topic"] == bench.dead
    assert (reason["kind"], reason["letters"], reason["attempts"]) == ("JSONDecodeError", len(BAD), 1)
    assert len(reason["records"]) == 3
    assert all(one.startswith(f"{bench.source}-") for one in reason["records"])
    shown = command(bench, "letters")
    assert shown.returncode == 0, shown.stderr
    assert "Expecting property name" in shown.stdout
    assert "{350" not in shown.stdout, "no record's bytes"


def test_a_topic_that_is_gone_is_named(bench: Bench) -> None:
    refused = command(bench, "letters", "--topic", f"{bench.dead}-gone")
    assert refused.returncode == ExitCode.PREFLIGHT
    assert f"Topic {bench.dead}-gone is not there" in refused.stderr


def redrive(bench: Bench, *words: str, kill_at: Sequence[str] = ()) -> tuple[int, str]:
    """Run the command in a process of its own; return its exit code, and all that it has said."""
    program = [sys.executable, "-m", "onceward.operate", "redrive", bench.job]
    place = ["--state-dir", str(bench.directory / "state"), "--servers", bench.topics.servers]
    with Processes(bench.directory) as processes:
        process = processes.start("redrive", [*program, *place, *words], armed_with(kill_at, bench.directory / "kills"))
        return process.wait(), process.tail(200)


def brought_back(bench: Bench, *, attempt: int = 1) -> list[int]:
    """The records in the input that were letters ``attempt`` times before."""
    messages = [one for one in bench.topics.messages(bench.source) if "onceward.error.attempt" in dict(headers_of(one))]
    for one in messages:
        assert [name for name, _ in headers_of(one)] == ["onceward.error.attempt", "onceward.error.first_seen"]
        assert one.key() == b"key-%d" % cast("int", one.partition()), "in the partition where it was"
    those = [one for one in messages if headers_of(one)[0][1] == b"%d" % attempt]
    return sorted(number_in(one.value() or b"") for one in those)


def number_in(value: bytes) -> int:
    return int(re.sub(rb"\D", b"", value))


def headers_of(message: Message) -> list[tuple[str, bytes]]:
    return cast("Any", message.headers()) or []


def lenient(record: dict[str, Any]) -> dict[str, Any]:
    return {"key": record["key"], "value": json.dumps({"n": number_in(record["value"])})}


def test_letters_go_back_once_and_the_corrected_job_writes_them(bench: Bench) -> None:
    code, said = redrive(bench, "--dry-run")
    assert (code, f"{len(BAD)} letters would go back into {bench.source}." in said) == (0, True), said
    assert brought_back(bench) == []
    code, said = redrive(bench)
    assert (code, f"{len(BAD)} letters of job {bench.job} are back" in said) == (0, True), said
    assert brought_back(bench) == BAD
    for _ in range(2):
        code, said = redrive(bench)
        assert (code, "0 letters" in said) == (0, True), said
    _, said = redrive(bench, "--dry-run")
    assert f"{len(BAD)} are back already." in said
    bench.pipeline(per_record(lenient)).run()
    assert bench.written() == sorted([*GOOD, *BAD])
    assert bench.letters() == BAD, "the letters stay in their topic"


def test_runs_that_want_some_leave_the_others_to_later_ones(bench: Bench) -> None:
    def otherwise(record: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("otherwise")

    bench.fill(range(900, 910))
    bench.pipeline(per_record(otherwise), {"rate": 1.0}).run()
    other = list(range(900, 910))
    code, said = redrive(bench, "--class", "KeyError")
    assert (code, brought_back(bench)) == (0, other), said
    assert redrive(bench, "--class", "ValueError")[0] == 0
    assert redrive(bench, "--class", "KeyError", "--attempts", "9")[0] == 0
    assert redrive(bench, "--since", "2100-01-01")[0] == 0
    assert brought_back(bench) == other, "these are back, or were not asked for"
    bench.fill(range(910, 915))
    bench.pipeline(per_record(otherwise), {"rate": 1.0}, read={"max_offsets_per_checkpoint": None}).run()
    assert redrive(bench, "--class", "KeyError", "--attempts", "2")[0] == 0
    assert brought_back(bench) == [*other, *range(910, 915)], "the others have failed twice"
    code, said = redrive(bench)
    assert (code, brought_back(bench)) == (0, sorted([*other, *range(910, 915), *BAD])), said
    assert brought_back(bench, attempt=2) == other, "what failed again is a letter again"


POINTS = [
    "driver.after_open:1",
    "driver.after_plan:1",
    "task.after_vote:1",
    "driver.after_acknowledge:1",
    "driver.after_end_txn:1",
]


@pytest.mark.kill
def test_a_run_that_is_killed_everywhere_brings_each_letter_back_once(bench: Bench) -> None:
    kills = 0
    while (ended := redrive(bench, kill_at=POINTS))[0] != 0:
        assert ended[0] == 128 + signal.SIGKILL, ended[1]
        kills += 1
        assert kills <= len(POINTS)
        if kills == len(POINTS) // 2:
            code, said = redrive(bench, "--class", "KeyError")
            assert (code, "has not ended" in said) == (ExitCode.HALTED, True), said
    assert kills >= 3, ended[1]
    assert brought_back(bench) == BAD


COPY = """
import json

def copied(topic, key, value):
    return [("OUT", key, json.dumps(json.loads(value)).encode())]
"""


LENIENT = """
import json, re

def copied(topic, key, value):
    return [("OUT", key, json.dumps({"n": int(re.sub(rb"\\D", b"", value))}).encode())]
"""


def verified(bench: Bench, monkeypatch: pytest.MonkeyPatch, expected: str = COPY) -> tuple[int, dict[str, Any]]:
    number = len(list(bench.directory.glob("expected_*")))
    module = f"expected_{number}_{bench.job.replace('-', '_')}"  # another test's stays imported
    (bench.directory / f"{module}.py").write_text(expected.replace("OUT", bench.out))
    monkeypatch.syspath_prepend(bench.directory)
    topics = ("--input", bench.source, "--output", bench.out, "--expected-by", f"{module}:copied")
    brokers = ("--servers", bench.topics.servers, "--state-dir", str(bench.directory / "state"))
    ran = onceward("verify", "--job", bench.job, *topics, *brokers, "--no-order", "--json")
    return ran.returncode, json.loads(ran.stdout or "{}") or {"said": ran.stderr}


def test_a_record_is_written_or_a_letter_and_verify_says_which(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.fill(range(900, 910), bad=[905])
    code, found = verified(bench, monkeypatch)
    assert code == 0, found
    assert found["input"] == {"read": 900, "written": len(GOOD), "filtered": 0, "letters": len(BAD)}
    letter = bench.topics.messages(bench.dead)[0]
    forged = dict(headers_of(letter)) | {"onceward.error.offset": b"305"}
    producer = Producer({"bootstrap.servers": bench.topics.servers})
    for headers, broken in (
        (headers_of(letter), {"nothing twice"}),
        (list(forged.items()), {"nothing twice", "nothing undecided visible"}),
    ):
        producer.produce(bench.dead, letter.value(), partition=0, headers=cast("Any", headers))
        assert producer.flush(30) == 0
        code, found = verified(bench, monkeypatch)
        failed = {name for name, one in found["properties"].items() if one["verdict"] == "FAIL"}
        assert (code, failed) == (1, broken), found


def test_letters_of_a_dataframe_have_the_headers_that_other_programs_know(
    topics: Topics, job: str, spark: "SparkSession", tmp_path: Path
) -> None:
    made = Bench(topics, job, spark, tmp_path)
    letters = {"where": "reason is not null", "aliases": "connect"}
    read = {"include_headers": True}
    made.pipeline(None, letters, transform=marked, outputs=good(made), read=read).run()
    message = next(one for one in topics.messages(made.dead) if one.value() == b"{350")
    connect = {name: value for name, value in headers_of(message) if name.startswith("__connect.errors.")}
    assert connect == {
        "__connect.errors.topic": made.source.encode(),
        "__connect.errors.partition": b"1",
        "__connect.errors.offset": b"50",
        "__connect.errors.connector.name": job.encode(),
        "__connect.errors.exception.class.name": b"condition",
        "__connect.errors.exception.message": b"the value is no JSON object of n bigint",
    }


def test_letters_that_are_dropped_never_go_back(bench: Bench) -> None:
    assert redrive(bench, "--drop", "--yes")[0] == ExitCode.USAGE
    code, said = redrive(bench, "--drop", "--yes", "--reason", "Ada: test data")
    assert (code, f"{len(BAD)} letters would be dropped" in said) == (0, True), said
    code, said = redrive(bench)
    assert (code, brought_back(bench)) == (0, []), said
    listed = json.loads(command(bench, "letters", "--json").stdout)
    (reason,) = listed["reasons"]
    assert (reason["letters"], reason["back"], reason["dropped"]) == (len(BAD), 0, len(BAD))
    assert listed["drops"] == ["Ada: test data"]
    assert f"{len(BAD)} were dropped: Ada: test data." in redrive(bench, "--dry-run")[1]


def test_letters_go_through_the_corrected_function_into_the_outputs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def still_wrong(record: dict[str, Any]) -> dict[str, Any]:
        if number_in(record["value"]) in failing:
            raise KeyError(record["offset"])
        return lenient(record)

    failing = BAD[3:5]
    before = {n: place_of(bench, n) for n in failing}
    for _ in range(2):
        bench.pipeline(per_record(still_wrong), {"rate": 1.0}).redrive(attempts=2).run()
    assert bench.written() == sorted({*GOOD, *BAD} - {*failing})
    assert bench.letters() == sorted([*BAD, *failing]), "those that failed again, and each once"
    assert {n: place_of(bench, n) for n in failing} == before, "the later letter names the same record"
    code, found = verified(bench, monkeypatch, LENIENT)
    assert (code, found["input"]["letters"]) == (0, len(failing)), found
    assert redrive(bench, "--class", "JSONDecodeError")[0] == 0
    assert brought_back(bench) == [], "they are back already"
    bench.pipeline(per_record(lenient)).redrive(letter_class="KeyError").run()
    assert bench.written() == sorted([*GOOD, *BAD])
    bench.pipeline(per_record(lenient)).run()
    assert bench.written() == sorted([*GOOD, *BAD]), "the job itself reads none of them"
    listed = json.loads(command(bench, "letters", "--json").stdout)
    assert {one["kind"]: (one["letters"], one["back"], one["attempts"]) for one in listed["reasons"]} == {
        "JSONDecodeError": (len(BAD), len(BAD), 1),
        "KeyError": (len(failing), len(failing), 2),
    }


def place_of(bench: Bench, number: int) -> set[tuple[bytes, ...]]:
    """What the letters of a record say of it."""
    letters = [
        dict(headers_of(one)) for one in bench.topics.messages(bench.dead) if number_in(one.value() or b"") == number
    ]
    names = ("topic", "partition", "offset", "timestamp", "job")
    return {tuple(letter[f"onceward.error.{name}"] for name in names) for letter in letters}


def test_marked_letters_of_a_dataframe_go_through_its_transform(
    topics: Topics, job: str, spark: "SparkSession", tmp_path: Path
) -> None:
    from pyspark.sql import functions as sql

    made = Bench(topics, job, spark, tmp_path)
    letters, read = {"where": "reason is not null"}, {"include_headers": True}
    made.pipeline(None, letters, transform=marked, outputs=good(made), read=read).run()
    assert made.letters() == BAD

    def mended(df: Any) -> Any:
        return marked(df.withColumn("value", sql.regexp_replace(df.value.cast("string"), "^\\{(\\d+)$", '{"n": $1}')))

    made.pipeline(None, letters, transform=mended, outputs=good(made), read=read).redrive().run()
    assert (made.written(), made.letters()) == (sorted([*GOOD, *BAD]), BAD)


@pytest.mark.kill
@pytest.mark.crash
def test_letters_that_go_into_the_outputs_go_once_whatever_is_killed(bench: Bench) -> None:
    program = bench.directory / "again.py"
    program.write_text(AGAIN.format(bench=bench, servers=bench.topics.servers, state=bench.directory / "state"))
    kills = 0
    while (code := run_program(bench, program))[0] != 0:
        assert code[0] == 128 + signal.SIGKILL, code[1]
        kills += 1
        assert kills <= len(FEWER)
    assert kills, code[1]
    assert bench.written() == sorted([*GOOD, *BAD])


FEWER = ["driver.after_plan:1", "driver.after_pre_commit:1", "driver.after_end_txn:1"]
AGAIN = """
import json, re
from onceward import *

def lenient(record):
    return {{"key": record["key"], "value": json.dumps({{"n": int(re.sub(rb"\\D", b"", record["value"]))}})}}

if __name__ == "__main__":
    Pipeline(
        job="{bench.job}",
        source=KafkaSource("{servers}", topics=["{bench.source}"], start="earliest"),
        transform_batches=per_record(lenient),
        sink=KafkaSink("{servers}", topic="{bench.out}"),
        dead_letters=DeadLetters(KafkaSink("{servers}", topic="{bench.dead}")),
        state_dir="{state}",
    ).redrive().run()
"""


def run_program(bench: Bench, program: Path) -> tuple[int, str]:
    with Processes(bench.directory) as processes:
        environment = armed_with(FEWER, bench.directory / "kills")
        process = processes.start("again", [sys.executable, str(program)], environment)
        return process.wait(), process.tail(200)
