"""Dead letters on the real broker, after they were written: listed by reason."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onceward import per_record
from onceward.common.errors import ExitCode
from tests.integration.test_letters import BAD, Bench, parsed
from tests.support.commands import onceward
from tests.support.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


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
