"""Dead letters on the real broker: every record of the input is in exactly one place."""

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from confluent_kafka.admin import NewPartitions

from onceward import (
    CheckpointSettings,
    DeadLetters,
    KafkaSink,
    KafkaSource,
    Output,
    Pipeline,
    PostgresSink,
    Restart,
    Retry,
    StreamingPipeline,
    parse_json,
    per_record,
    register,
)
from onceward.common.errors import ConfigurationError, HaltedError
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.service.listen import parse_listen
from onceward.driver.restarts import NO_RESTART
from onceward.protocol.events import CloseReason
from onceward.watch.web.page import Page
from tests.support.database import database_on
from tests.support.topics import Topics, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from onceward.dev.postgres.server import LocalPostgres

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

RECORDS = 300
BAD = [*range(0, 3 * RECORDS, 50)]
GOOD = [n for n in range(3 * RECORDS) if n not in BAD]


class Bench:
    """A job whose input, of three partitions, has a record in 50 that is no JSON."""

    def __init__(self, topics: Topics, job: str, spark: "SparkSession", directory: Path) -> None:
        self.topics, self.job, self.spark, self.directory = topics, job, spark, directory
        self.source, self.out, self.dead = topics.create("in", 3), topics.create("out", 2), topics.create("dead", 3)
        for partition in range(3):
            self.fill(range(partition * RECORDS, (partition + 1) * RECORDS), partition)

    def fill(self, numbers: range, partition: int = 0, bad: Any = None) -> None:
        wrong = BAD if bad is None else bad
        values: list[bytes | None] = [b"{%d" % n if n in wrong else json.dumps({"n": n}).encode() for n in numbers]
        self.topics.fill(self.source, values, partition=partition, key=b"key-%d" % partition)

    def pipeline(self, function: Any, letters: dict[str, Any] | None = None, **options: Any) -> Pipeline:
        servers = self.topics.servers
        if "outputs" not in options:
            options["sink"] = KafkaSink(servers, topic=self.out)
        return Pipeline(
            job=self.job,
            source=KafkaSource(
                servers,
                topics=[self.source],
                **{"start": "earliest", "end": "latest", "max_offsets_per_checkpoint": 250, **options.pop("read", {})},
            ),
            **({} if function is None else {"transform_batches": function}),
            dead_letters=DeadLetters(KafkaSink(servers, topic=self.dead), **{"rate": "5%", **(letters or {})}),
            spark=self.spark,
            state_dir=self.directory / "state",
            **{"settings": CheckpointSettings(interval="50ms"), "restart": NO_RESTART, **options},
        )

    def written(self) -> list[int]:
        return sorted(json.loads(value or b"")["n"] for value in self.topics.values(self.out))

    def letters(self) -> list[int]:
        return sorted(int((value or b"").removeprefix(b"{")) for value in self.topics.values(self.dead))


@pytest.fixture
def bench(topics: Topics, job: str, spark: "SparkSession", tmp_path: Path) -> Bench:
    return Bench(topics, job, spark, tmp_path)


def parsed(record: dict[str, Any]) -> dict[str, Any]:
    return {"key": record["key"], "value": json.dumps(json.loads(record["value"]))}


@pytest.mark.parametrize("tasks", ["per_checkpoint", "staying"])
def test_a_letter_keeps_what_the_function_does_not_read(bench: Bench, tasks: Any) -> None:
    bench.topics.fill(bench.source, [b"{5000"], partition=0, key=b"of it", headers=[("trace", b"x")])

    def narrow(record: dict[str, Any]) -> dict[str, Any]:
        if list(record) != ["value"]:
            raise OSError(f"it reads {list(record)}")
        return {"value": json.dumps(json.loads(record["value"]))}

    read = {"columns": ["value"], **({} if tasks == "per_checkpoint" else {"max_offsets_per_checkpoint": None})}
    assert bench.pipeline(per_record(narrow), tasks=tasks, read=read).run() is CloseReason.FINISHED
    assert (bench.written(), bench.letters()) == (GOOD, [*BAD, 5000])
    letter = next(one for one in bench.topics.messages(bench.dead) if one.value() == b"{5000")
    said = dict(cast("Any", letter.headers()))
    assert (letter.key(), letter.partition(), said["trace"]) == (b"of it", 0, b"x")
    assert said["onceward.error.offset"] == b"%d" % RECORDS


def broken(record: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("a wrong deploy")


def parsed_in_two_ways(record: dict[str, Any]) -> dict[str, Any]:
    if record["value"] == b"{850":
        raise KeyError("currency")
    return parsed(record)


def page_of(bench: Bench) -> str:
    """The text that the page of the job shows of its letters."""
    with (
        EmbeddedCoordinator(bench.directory / "state") as coordinator,
        closing(Page(parse_listen("127.0.0.1:0"))) as page,
    ):
        page.attach(coordinator.address, coordinator.address)
        with urllib.request.urlopen(f"{page.url}jobs/{bench.job}", timeout=60) as answer:
            shown = answer.read().decode()
    (section,) = re.findall(r'<section aria-labelledby="letters">.*?</section>', shown, re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", section.replace("<wbr>", "")).split())


@pytest.mark.parametrize("tasks", ["per_checkpoint", "staying"])
def test_every_record_is_in_exactly_one_place_and_the_page_says_why(bench: Bench, tasks: Any) -> None:
    read = {} if tasks == "per_checkpoint" else {"max_offsets_per_checkpoint": None}
    assert bench.pipeline(per_record(parsed_in_two_ways), tasks=tasks, read=read).run() is CloseReason.FINISHED
    assert (bench.written(), bench.letters()) == (GOOD, BAD)
    places = {(partition, key) for partition, _, key, _ in bench.topics.read(bench.dead)}
    assert places == {(n, b"key-%d" % n) for n in range(3)}, "each in the partition that it had"
    page = page_of(bench)
    assert re.search(rf"{len(BAD)} letters up to checkpoint \d+\.", page)
    assert re.search(rf"JSONDecodeError 17 17 \d+ ({bench.source}-\d offset \d+ ?){{3}}", page)
    assert re.search(rf"KeyError 1 1 \d+ {bench.source}-2 offset 250 onceward letters {bench.job} --servers", page)
    assert not re.search("currency|Expecting", page), "no message, which may quote a record"


@pytest.mark.parametrize("tasks", ["per_checkpoint", "staying"])
def test_a_deploy_that_makes_everything_fail_halts_within_the_limit(bench: Bench, tasks: Any) -> None:
    read = {} if tasks == "per_checkpoint" else {"max_offsets_per_checkpoint": None}
    with pytest.raises(HaltedError) as halted:
        bench.pipeline(per_record(broken), tasks=tasks, read=read).run()
    assert re.search(r"\b(21|31) became dead letters", str(halted.value)), "of one partition, or of two"
    assert "ValueError: a wrong deploy" in str(halted.value)
    assert (bench.written(), bench.letters()) == ([], []), "nothing of the checkpoint is visible"
    bench.pipeline(per_record(parsed), tasks=tasks, read=read).run()
    assert (bench.written(), bench.letters()) == (GOOD, BAD)


def test_a_job_with_several_outputs_has_one_place_for_its_letters(bench: Bench) -> None:
    def routed(record: dict[str, Any]) -> Any:
        return "out", parsed(record)

    outputs = {
        "out": Output(KafkaSink(bench.topics.servers, topic=bench.out)),
        "other": Output(KafkaSink(bench.topics.servers, topic=bench.topics.create("other", 1))),
    }
    bench.pipeline(per_record(routed), outputs=outputs).run()
    assert (bench.written(), bench.letters()) == (GOOD, BAD)


def test_the_limit_counts_over_runs_and_a_larger_total_lets_it_continue(bench: Bench) -> None:
    bench.pipeline(per_record(parsed), {"total": len(BAD)}).run()
    bench.fill(range(900, 950), bad=[900])
    with pytest.raises(HaltedError, match=f"total={len(BAD)}"):
        bench.pipeline(per_record(parsed), {"total": len(BAD)}).run()
    assert bench.letters() == BAD
    bench.pipeline(per_record(parsed), {"total": len(BAD) + 1}).run()
    assert (bench.written(), bench.letters()) == ([*GOOD, *range(901, 950)], [*BAD, 900])


@pytest.mark.parametrize("tasks", ["per_checkpoint", "staying"])
def test_a_function_that_asks_to_be_called_later_is_not_called_before(bench: Bench, tmp_path: Path, tasks: Any) -> None:
    calls = tmp_path / "calls"

    def waiting(record: dict[str, Any]) -> dict[str, Any]:
        if record["partition"] == 0 and record["offset"] == 1:
            first = not calls.exists()
            with calls.open("a") as file:
                file.write(f"{time.time()}\n")
            if first:
                raise Retry("rates are away", after=4)
        return parsed(record)

    read = {} if tasks == "per_checkpoint" else {"max_offsets_per_checkpoint": None}
    bench.pipeline(per_record(waiting), tasks=tasks, read=read, restart=Restart(initial="10ms")).run()
    first, *others = map(float, calls.read_text().split())
    assert min(others) - first >= 4, "also not by Spark, which tries a failed task again at once"
    assert (bench.written(), bench.letters()) == (GOOD, BAD)


def marked(df: "DataFrame") -> "DataFrame":
    return df.withColumn("p", parse_json("value", "n bigint")).select("*", "p.reason")


def good(bench: Bench) -> dict[str, Output]:
    sink = KafkaSink(bench.topics.servers, topic=bench.out)
    return {"out": Output(sink, where="reason is null", select=["key", "to_json(p.record) as value"])}


def test_a_dataframe_marks_its_letters(bench: Bench) -> None:
    letters = {"where": "reason is not null"}
    pipeline = bench.pipeline(None, letters, transform=marked, outputs=good(bench), read={"include_headers": True})
    assert pipeline.run() is CloseReason.FINISHED
    assert (bench.written(), bench.letters()) == (GOOD, BAD)
    assert_said(bench)


def test_a_record_that_came_back_to_a_dataframe_counts_its_attempts(bench: Bench) -> None:
    prefix = "onceward.error."
    for number, attempt in enumerate([b"2", b"x", b"2147483647"]):
        came: list[tuple[str, str | bytes | None]] = [
            ("trace", b"x"),
            (prefix + "attempt", attempt),
            (prefix + "first_seen", b"17"),
            (prefix + "class", b"KeyError"),
        ]
        bench.topics.fill(bench.source, [b"{%d" % (5000 + number)], headers=came)
    letters, read = {"where": "reason is not null"}, {"include_headers": True}
    bench.pipeline(None, letters, transform=marked, outputs=good(bench), read=read).run()
    found = {one.value(): cast("Any", one.headers()) for one in bench.topics.messages(bench.dead)}
    for number, after in enumerate([b"3", b"1", b"2147483648"]):
        headers = found[b"{%d" % (5000 + number)]
        said = dict(headers)
        assert len(headers) == len(said), "none is doubled"
        assert (said["trace"], said[prefix + "first_seen"], said[prefix + "class"]) == (b"x", b"17", b"condition")
        assert said[prefix + "attempt"] == after


def test_letters_of_a_dataframe_do_not_lose_their_headers(bench: Bench) -> None:
    for read in ({}, {"include_headers": True, "columns": ["key", "value", "headers"]}):
        with pytest.raises(ConfigurationError, match="include_headers=True"):
            bench.pipeline(None, {"where": "reason is not null"}, transform=marked, outputs=good(bench), read=read)


def assert_said(bench: Bench) -> None:
    """One letter of a DataFrame says where its record was, and why it is one."""
    message = next(one for one in bench.topics.messages(bench.dead) if one.value() == b"{350")
    said = {key.removeprefix("onceward.error."): value for key, value in cast("Any", message.headers())}
    assert float(said.pop("timestamp")) > 0
    assert int(said.pop("checkpoint")) > 1
    assert said == {
        "topic": bench.source.encode(),
        "partition": b"1",
        "offset": b"50",
        "job": bench.job.encode(),
        "stage": b"transform",
        "class": b"condition",
        "message": b"the value is no JSON object of n bigint",
        "attempt": b"1",
    }
    assert message.partition() == 1


def test_a_dataframe_with_too_many_letters_halts_with_their_reason(bench: Bench) -> None:
    bench.fill(range(900, 910), bad=range(900, 910))
    letters = {"where": "reason is not null", "rate": "1%"}
    read = {"max_offsets_per_checkpoint": None, "include_headers": True}
    with pytest.raises(HaltedError, match=r"condition: the value is no JSON object of n bigint \(") as halted:
        bench.pipeline(None, letters, transform=marked, outputs=good(bench), read=read).run()
    assert "became dead letters; rate=1.00% permits less" in str(halted.value)
    assert (bench.written(), bench.letters()) == ([], [])


LARGE = [7, 450, 899]
OF_OUTPUTS = ("too_large", "schema", "refused")


def with_large_ones(bench: Bench) -> list[int]:
    """Let the output take 2,000 bytes, and write three records that have more. Returns the numbers of the others."""
    bench.topics.configure(bench.out, {"max.message.bytes": "2000"})
    bench.source = bench.topics.create("large", 3)
    for partition in range(3):
        numbers = range(partition * RECORDS, (partition + 1) * RECORDS)
        values: list[bytes | None] = [
            json.dumps({"n": n, "pad": "x" * (70_000 if n in LARGE else 3)}).encode() for n in numbers
        ]
        bench.topics.fill(bench.source, values, partition=partition, key=b"key-%d" % partition)
    return [n for n in range(3 * RECORDS) if n not in LARGE]


def copied(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["key", "value"])


def transformed(df: "DataFrame") -> "DataFrame":
    return df.where("offset >= 0")


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (per_record(parsed), {}),
        (copied, {}),
        (copied, {"tasks": "staying", "read": {"max_offsets_per_checkpoint": None}}),
        (None, {}),
        (None, {"transform": transformed}),
    ],
    ids=["records", "batches", "staying", "copy", "dataframe"],
)
def test_a_record_that_is_too_large_for_its_topic_is_a_letter_before_it_is_produced(
    bench: Bench, function: Any, options: dict[str, Any]
) -> None:
    others = with_large_ones(bench)
    letters = {"on": OF_OUTPUTS} if function is None else {}
    if "transform" in options:
        sink = KafkaSink(bench.topics.servers, topic=bench.out)
        options = {**options, "outputs": {"sink": Output(sink, select=["key", "value"])}}
    assert bench.pipeline(function, letters, **options).run() is CloseReason.FINISHED
    assert bench.written() == others
    found = {}
    for message in bench.topics.messages(bench.dead):
        said = {key.removeprefix("onceward.error."): value for key, value in cast("Any", message.headers())}
        place = int(said["partition"]) * RECORDS + int(said["offset"])
        found[place] = (said["topic"].decode(), said["stage"], said["class"], said["output"], int(said["size"]))
        value = message.value()
        assert value is not None
        assert (len(value), json.loads(value + b'"}')["n"], message.partition()) == (65_536, place, place // RECORDS)
        assert message.key() == b"key-%d" % (place // RECORDS)
    sizes = {n: len(json.dumps({"n": n, "pad": "x" * 70_000})) for n in LARGE}
    assert found == {n: (bench.source, b"output", b"too_large", b"sink", size) for n, size in sizes.items()}


def test_a_record_that_is_too_large_for_one_of_two_outputs_goes_to_neither(bench: Bench) -> None:
    others = with_large_ones(bench)
    wider = bench.topics.create("wider", 1)
    servers = bench.topics.servers
    outputs = {
        "out": Output(KafkaSink(servers, topic=bench.out), where="offset >= 0", select=["key", "value"]),
        "wider": Output(KafkaSink(servers, topic=wider), where="offset % 2 = 1", select=["value"]),
    }
    bench.pipeline(None, {"on": OF_OUTPUTS}, transform=transformed, outputs=outputs).run()
    assert bench.written() == others
    assert sorted(json.loads(value or b"")["n"] for value in bench.topics.values(wider)) == [n for n in others if n % 2]
    assert len(bench.topics.values(bench.dead)) == len(LARGE)


def test_too_many_records_that_an_output_refuses_halt_the_job(bench: Bench) -> None:
    with_large_ones(bench)
    bench.topics.configure(bench.out, {"max.message.bytes": "90"})
    with pytest.raises(HaltedError, match=r"became dead letters.* for too_large"):
        bench.pipeline(None, {"on": OF_OUTPUTS}).run()
    assert (bench.topics.values(bench.out), bench.topics.values(bench.dead)) == ([], [])


def test_without_where_a_dataframe_says_that_only_outputs_set_records_aside(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match='on= without "transform"'):
        bench.pipeline(None, transform=transformed)
    with pytest.raises(ConfigurationError, match='Add "transform" to on='):
        bench.pipeline(None, {"where": "true", "on": OF_OUTPUTS}, transform=transformed, outputs=good(bench))
    branch = {"out": Output(KafkaSink(bench.topics.servers, topic=bench.out), transform=transformed)}
    with pytest.raises(ConfigurationError, match="each output has a transform= of its own"):
        bench.pipeline(None, {"on": OF_OUTPUTS}, outputs=branch)


def test_a_record_that_its_topic_cannot_take_is_a_letter(bench: Bench) -> None:
    """A partition that is added later is taken: the brokers are asked before a record is set aside."""

    def routing(record: dict[str, Any]) -> dict[str, Any]:
        n = json.loads(record["value"])["n"]
        topic = {1: "nowhere", 4: table}.get(n, out)
        return {"value": record["value"], "topic": topic, "partition": {2: 2, 3: -1}.get(n, n % 2)}

    out, table = bench.out, bench.topics.create("table", config={"cleanup.policy": "compact"})
    schema = pa.schema([("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32())])
    sink = KafkaSink(bench.topics.servers, topics=[bench.out, table])
    outputs = {"out": Output(sink)}
    bench.pipeline(per_record(routing, schema=schema), outputs=outputs).run()
    assert bench.written() == [n for n in GOOD if n not in (1, 2, 3, 4)]
    found = {}
    for message in bench.topics.messages(bench.dead):
        said = {key.removeprefix("onceward.error."): value for key, value in cast("Any", message.headers())}
        if said["stage"] == b"output":
            found[json.loads(message.value() or b"")["n"]] = said["class"]
    assert found == dict.fromkeys((1, 2, 3, 4), b"refused")
    wait_for(bench.topics.admin.create_partitions([NewPartitions(bench.out, 3)])[bench.out])
    bench.fill(range(2, 3), bad=[])
    bench.pipeline(per_record(routing, schema=schema), outputs=outputs).run()
    assert bench.written() == [n for n in GOOD if n not in (1, 3, 4)]


@pytest.mark.parametrize("transform", [None, transformed])
def test_a_row_that_postgresql_refuses_is_a_letter_and_in_no_other_output(
    bench: Bench, postgres: "LocalPostgres", transform: Any
) -> None:
    servers = bench.topics.servers
    select = ["cast(offset as int) id", "decode(value, 'utf-8') text"]
    with database_on(postgres, bench.job) as database:
        database.run("CREATE TABLE orders (id int CHECK (id <> 7), text varchar(11))")
        outputs = {
            "table": Output(PostgresSink(database.dsn, "orders"), where="partition = 0", select=select),
            "out": Output(KafkaSink(servers, topic=bench.out), where="partition = 0", select=["value"]),
        }
        bench.fill(range(10_000, 10_002), bad=[])
        bench.pipeline(None, {"on": OF_OUTPUTS}, transform=transform, outputs=outputs).run()
        written = sorted(n for (n,) in database.rows("SELECT id FROM orders"))
    offsets = [n for n in range(RECORDS + 2) if n not in (7, RECORDS, RECORDS + 1)]
    assert written == offsets
    assert len(bench.topics.values(bench.out)) == len(offsets)
    found = {}
    for message in bench.topics.messages(bench.dead):
        said = {key.removeprefix("onceward.error."): value for key, value in cast("Any", message.headers())}
        found[int(said["offset"])] = (said["output"], said["class"], message.key())
    assert found == {
        7: (b"table", b"refused", b"key-0"),
        RECORDS: (b"table", b"schema", b"key-0"),
        RECORDS + 1: (b"table", b"schema", b"key-0"),
    }


def test_a_letter_that_is_too_large_for_its_topic_refers_to_the_record_or_halts_the_job(bench: Bench) -> None:
    def failing(record: dict[str, Any]) -> dict[str, Any]:
        if json.loads(record["value"])["n"] in LARGE:
            raise ValueError("x" * 900)
        return {"value": record["value"]}

    with_large_ones(bench)
    bench.topics.configure(bench.dead, {"max.message.bytes": "300"})
    with pytest.raises(HaltedError, match="refuses a letter, even without its record: the record has"):
        bench.pipeline(per_record(failing)).run()
    assert (bench.topics.values(bench.out), bench.topics.values(bench.dead)) == ([], [])
    bench.topics.configure(bench.dead, {"max.message.bytes": "2000"})
    bench.pipeline(per_record(failing)).run()
    assert bench.topics.values(bench.dead) == [None] * len(LARGE)
    for message in bench.topics.messages(bench.dead):
        said = {key.removeprefix("onceward.error."): value for key, value in cast("Any", message.headers())}
        assert (said["class"], int(said["size"]) > 70_000) == (b"ValueError", True)
        assert int(said["partition"]) * RECORDS + int(said["offset"]) in LARGE


def query(bench: Bench, made: Any, letters: dict[str, Any] | None = None, **options: Any) -> StreamingPipeline:
    """A query of the same input, in batches of 250 records."""

    def build(spark: "SparkSession") -> "DataFrame":
        register(spark)
        source = spark.readStream.format("onceward").option("kafka.bootstrap.servers", bench.topics.servers)
        source = source.option("subscribe", bench.source).option("startingOffsets", "earliest")
        return cast("DataFrame", made(source.option("maxOffsetsPerTrigger", 250).load()))

    return StreamingPipeline(
        job=bench.job,
        query=build,
        dead_letters=DeadLetters(
            KafkaSink(bench.topics.servers, topic=bench.dead),
            **{"where": "reason is not null", "rate": "5%", **(letters or {})},
        ),
        checkpoint_location=bench.directory / "checkpoint",
        trigger={"availableNow": True},
        spark=bench.spark.newSession(),
        state_dir=bench.directory / "state",
        restart=NO_RESTART,
        **{"outputs": good(bench), **options},
    )


def test_a_query_marks_its_letters(bench: Bench) -> None:
    assert query(bench, marked).run() is CloseReason.FINISHED
    assert (bench.written(), bench.letters()) == (GOOD, BAD)
    assert_said(bench)


def test_a_query_sets_aside_what_its_output_refuses(bench: Bench) -> None:
    others = with_large_ones(bench)
    out = {"out": Output(KafkaSink(bench.topics.servers, topic=bench.out), select=["key", "value"])}
    query(bench, lambda df: df, {"where": None, "on": OF_OUTPUTS}, outputs=out).run()
    assert bench.written() == others
    letters = bench.topics.messages(bench.dead)
    said = [dict(cast("Any", one.headers())) for one in letters]
    places = {(int(one["onceward.error.partition"]), int(one["onceward.error.offset"])) for one in said}
    assert places == {divmod(n, RECORDS) for n in LARGE}
    assert {one["onceward.error.class"] for one in said} == {b"too_large"}
    assert {one.key() for one in letters} == {b"key-0", b"key-1", b"key-2"}


def test_a_letter_of_a_query_says_what_the_query_knows(bench: Bench) -> None:
    def counted(df: "DataFrame") -> "DataFrame":
        counts = df.groupBy("key").agg({"*": "count"}).withColumnRenamed("count(1)", "n")
        return counts.selectExpr("key", "cast(n as string) as value", "'three' as partition", "'too many' as reason")

    letters = {"rate": 1.0}
    query(bench, counted, letters, output_mode="update", outputs=nothing(bench)).run()
    for message in bench.topics.messages(bench.dead):
        said = {key.removeprefix("onceward.error."): value for key, value in cast("Any", message.headers())}
        assert int(said.pop("checkpoint")) > 1
        assert said == {
            "job": bench.job.encode(),
            "stage": b"transform",
            "class": b"condition",
            "message": b"too many",
            "attempt": b"1",
        }
    counts = {key: int(value or b"") for _, _, key, value in bench.topics.read(bench.dead)}
    assert counts == {b"key-%d" % n: RECORDS for n in range(3)}, "the last count of each key"


def nothing(bench: Bench) -> dict[str, Output]:
    return {"out": Output(KafkaSink(bench.topics.servers, topic=bench.out), where="false", select=["key", "value"])}


def test_a_query_with_too_many_letters_halts_over_its_starts(bench: Bench) -> None:
    total = {"total": len(BAD)}
    query(bench, marked, total).run()
    bench.fill(range(900, 950), bad=[900])
    with pytest.raises(HaltedError, match=f"total={len(BAD)}"):
        query(bench, marked, total).run()
    assert bench.letters() == BAD
    query(bench, marked, {"total": len(BAD) + 1}).run()
    assert (bench.written(), bench.letters()) == ([*GOOD, *range(901, 950)], [*BAD, 900])


def test_the_rate_of_a_query_is_of_the_records_that_it_gives_away(bench: Bench) -> None:
    def few(df: "DataFrame") -> "DataFrame":
        """All bad records, and ten times as many good ones."""
        return marked(df).where("reason is not null or p.record.n % 5 = 0")

    bench.fill(range(900, 1200), bad=range(900, 1200, 10))
    with pytest.raises(HaltedError) as halted:
        query(bench, few).run()
    found = re.search(r"Of the last (\d+) records (\d+) became dead letters; rate=5.00%", str(halted.value))
    assert found is not None
    records, letters = map(int, found.groups())
    assert 20 < letters < records < 250, "of three batches of 250, of which the query drops most"
    query(bench, few, {"rate": "50%"}).run()
    assert bench.letters() == [*BAD, *range(900, 1200, 10)]


@pytest.mark.parametrize("kind", ["string", "binary"])
def test_values_that_are_no_json_object_of_the_schema_have_a_reason(spark: "SparkSession", kind: str) -> None:
    values = ['{"n": 1}', '{"n": 1, "other": 2}', "{}", '{"n": "x"}', "{", "7", "", " ", None]
    df = spark.createDataFrame([(one,) for one in values], "value string").selectExpr(f"cast(value as {kind}) value")
    found = df.select("value", parse_json("value", "n bigint").alias("p")).select("p.record.n", "p.reason").collect()
    wrong = "the value is no JSON object of n bigint"
    assert [tuple(row) for row in found] == [
        *[(1, None), (1, None), (None, None)],
        *[(None, wrong)] * 3,
        *[(None, "the value is empty")] * 2,
        (None, "the value is null"),
    ]
