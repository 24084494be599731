"""A halted job on the real broker: what a person sees, what is refused, and that it continues exactly as decided."""

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from typer.testing import CliRunner, Result

from onceward import CheckpointSettings, KafkaSink, KafkaSource
from onceward.common.errors import ExitCode, HaltedError, RefusedError
from onceward.connectors.interfaces import JobContext
from onceward.driver.restarts import NO_RESTART
from onceward.operate.cli import app
from onceward.protocol.events import CloseReason
from onceward.protocol.values import Author, Committable, Outcome, Settlement
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.control.transactions import Transactions
from onceward.sinks.kafka.driver.session import KafkaSinkSession
from tests.support.shared_kafka import SharedKafka
from tests.support.sparkless import SparklessPipeline
from tests.support.topics import Topics, open_transactions_hold_back, wait_for
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)

RECORDS = 20
DOUBT = "nothing is proved"

Strike = Callable[[ControlPlane, Committable], Settlement | None]
"""What happens to a slot before its commit. Returns what the driver is made to believe; None for the true outcome."""


class StruckSink(KafkaSink):
    """A Kafka sink whose slot 0 is struck when its checkpoint is committed."""

    def __init__(self, servers: str, strike: Strike, **options: Any) -> None:
        super().__init__(servers, **options)
        self.strike = strike

    def connect(self, context: JobContext) -> KafkaSinkSession:
        session = super().connect(context)
        system = _struck(session.system(), lambda committable: self.strike(session._control, committable))
        session.system = lambda: system  # type: ignore[method-assign]
        return session


def _struck(committer: KafkaSystem, strike: Callable[[Committable], Settlement | None]) -> KafkaSystem:
    commit = committer.commit

    def struck(author: Author, committables: Sequence[Committable], **options: Any) -> Sequence[Settlement]:
        believed = [strike(one) for one in committables if one.slot == 0]
        made_up = [one for one in believed if one is not None]
        kept = [one for one in committables if one.slot not in {settlement.slot for settlement in made_up}]
        return [*made_up, *commit(author, kept, **options)]

    setattr(committer, "commit", struck)  # noqa: B010 - the driver holds this object
    return committer


def aborted_behind_its_back(control: ControlPlane, committable: Committable) -> None:
    handle = KafkaCommittable.of(committable).transaction
    assert Transactions(control).end([handle], commit=False)[handle.id] == 0


def in_doubt(_control: ControlPlane, committable: Committable) -> Settlement:
    return Settlement(slot=committable.slot, outcome=Outcome.IN_DOUBT, evidence=DOUBT)


class Bench:
    """One job with two input partitions, so two slots, and the command line."""

    def __init__(self, topics: Topics, job: str, directory: Path) -> None:
        self.topics, self.job, self.directory = topics, job, directory
        self.source, self.sink = topics.create("in", 2), topics.create("out", 2)
        self.clusters = directory / "clusters.toml"
        self.clusters.write_text(f'[clusters.main]\nbootstrap_servers = "{topics.servers}"\n')

    def fill(self, partition: int) -> None:
        values: list[bytes | None] = [b"%d-%d" % (partition, number) for number in range(RECORDS)]
        self.topics.fill(self.source, values, partition=partition, key=b"key-%d" % partition)

    def run(self, strike: Strike | None = None) -> CloseReason:
        return self.pipeline(strike).run()

    def run_until(self, records: int) -> None:
        """Run without an end until ``records`` are written, then stop."""
        pipeline = self.pipeline(end=None)

        def stop() -> None:
            wait_until(lambda: len(self.written()) == records, f"{records} records are written")
            pipeline.stop()

        stopper = threading.Thread(target=stop)
        stopper.start()
        assert pipeline.run() is CloseReason.STOPPED
        stopper.join()

    def pipeline(self, strike: Strike | None = None, *, end: Any = "latest") -> SparklessPipeline:
        options: dict[str, Any] = {"topic": self.sink, "on_lost": "halt"}
        servers = self.topics.servers
        return SparklessPipeline(
            job=self.job,
            source=KafkaSource(servers, topics=[self.source], start="earliest", end=end),
            sink=StruckSink(servers, strike, **options) if strike is not None else KafkaSink(servers, **options),
            state_dir=self.directory / "state",
            settings=CheckpointSettings(interval="50ms"),
            restart=NO_RESTART,
        )

    def command(self, *words: str, clusters: bool = True) -> Result:
        place = ["--state-dir", str(self.directory / "state")]
        return CliRunner().invoke(app, [*words, *place, *(["--clusters", str(self.clusters)] if clusters else [])])

    def transactions(self) -> list[dict[str, Any]]:
        said = self.command("transactions", self.job, "--json")
        assert said.exception is None, said.exception
        listed: list[dict[str, Any]] = json.loads(said.stdout)
        return listed

    def resolve(self, *options: str) -> Result:
        return self.command("resolve", self.job, "--reason", "Ada, after the outage", "--yes", *options)

    def written(self) -> list[bytes]:
        return sorted(value for value in self.topics.values(self.sink) if value is not None)


def of(*partitions: int) -> list[bytes]:
    return sorted(b"%d-%d" % (partition, number) for partition in partitions for number in range(RECORDS))


@pytest.fixture
def bench(topics: Topics, job: str, tmp_path: Path) -> Bench:
    made = Bench(topics, job, tmp_path)
    made.fill(0)
    made.fill(1)
    return made


@pytest.mark.parametrize(
    ("ruling", "expected", "code"), [("--give-up", of(1), ExitCode.LOSSES), ("--replay", of(0, 1), ExitCode.FINISHED)]
)
def test_a_transaction_aborted_behind_the_jobs_back_follows_the_operators_ruling(
    bench: Bench, ruling: str, expected: list[bytes], code: ExitCode
) -> None:
    with pytest.raises(HaltedError, match=rf"slot 0 .* {RECORDS} records .*{bench.source}-0 offsets \[0, {RECORDS}\)"):
        bench.run(aborted_behind_its_back)
    lost, committed = bench.transactions()
    assert (lost["slot"], lost["decision"], lost["state"], lost["outcome"]) == (0, "completed", "not open", "lost")
    assert (committed["slot"], committed["outcome"]) == (1, "committed")
    assert "CompleteAbort" in lost["evidence"]
    assert f"{bench.source}-0 offsets [0, {RECORDS})" in lost["holds"]

    with pytest.raises(HaltedError, match="until a person decides"):
        bench.run()
    refused = bench.resolve("--commit", "all").exception
    assert isinstance(refused, RefusedError)
    assert "slot 0 is proved lost" in str(refused)
    said = bench.resolve(ruling, "all")
    assert said.exception is None, said.exception
    assert bench.run() is CloseReason.FINISHED
    assert bench.written() == expected
    assert bench.transactions() == []
    assert bench.command("jobs", clusters=False).exit_code == code


@pytest.mark.parametrize(("ruling", "expected"), [("--commit", of(0, 1)), ("--give-up", of(1))])
def test_a_slot_in_doubt_follows_the_operators_ruling(
    bench: Bench, kafka: SharedKafka, ruling: str, expected: list[bytes]
) -> None:
    with pytest.raises(HaltedError, match=DOUBT):
        bench.run(in_doubt)
    doubtful = bench.transactions()[0]
    assert (doubtful["slot"], doubtful["state"], doubtful["outcome"]) == (0, "Ongoing", "in_doubt")
    assert (doubtful["details"]["receipt"], doubtful["sink"], doubtful["generation"]) == ("written", "sink", 1)
    assert 0 < doubtful["left_s"] <= 15 * 60
    assert sum(open_transactions_hold_back(kafka.bootstrap_servers, bench.sink).values()) > 0
    said = bench.resolve(ruling, "0")
    assert said.exception is None, said.exception
    assert bench.transactions() == []
    assert open_transactions_hold_back(kafka.bootstrap_servers, bench.sink) == {0: 0, 1: 0}
    assert bench.written() == expected
    assert bench.run() is CloseReason.FINISHED
    assert bench.written() == expected


def test_input_that_was_deleted_is_skipped_and_the_rest_is_read(bench: Bench) -> None:
    bench.run_until(2 * RECORDS)
    bench.fill(0)
    gone = RECORDS + RECORDS // 2
    (deleted,) = bench.topics.admin.delete_records([TopicPartition(bench.source, 0, gone)]).values()
    wait_for(deleted)
    with pytest.raises(HaltedError, match=f"{bench.source}"):
        bench.run()
    skip = ("resolve", bench.job, "--reason", "Ada", "--yes", "--skip-input", f"{bench.source}:0", "--to")
    backwards = bench.command(*skip, str(RECORDS - 1), clusters=False).exception
    assert isinstance(backwards, RefusedError)
    assert f"read next from offset {RECORDS}" in str(backwards)
    skipped = bench.command(*skip, str(gone), clusters=False)
    assert skipped.exception is None, skipped.exception
    assert f"{bench.source}-0 [{RECORDS}, {gone})" in skipped.stdout
    assert bench.run() is CloseReason.FINISHED
    again = [b"0-%d" % number for number in range(RECORDS // 2, RECORDS)]
    assert bench.written() == sorted([*of(0, 1), *again])
