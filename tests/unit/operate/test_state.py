"""``onceward state`` without Spark: what it refuses before it starts it."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.common.errors import ExitCode
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.operate import listings
from onceward.operate.options import View
from onceward.operate.tables import Times, print_listings
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import SPARK_BATCH, JobName, ParticipantName
from onceward.wire.rows import JobDescription, as_json
from tests.support.commands import onceward
from tests.support.scripted import SINK, SOURCE
from tests.unit.web.chromium.prepared import LETTERS, NOW, RUNNING, PreparedClient, prepared


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), ExitCode.USAGE, "has completed no batch of a Structured Streaming query"),
        (("--operator", "0", "--option", "joinSide"), ExitCode.USAGE, "'joinSide' is not NAME=VALUE"),
    ],
)
def test_state_of_a_job_without_a_query_and_options_without_a_value_are_refused(
    tmp_path: Path, words: tuple[str, ...], code: ExitCode, says: str
) -> None:
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        client.open_job(
            JobName("orders"), (SOURCE, SINK), CheckpointSettings(interval=None), None, driver="d", wait="0s"
        )
        refused = onceward("state", "orders", "--coordinator", coordinator.address, *words)
    assert (refused.returncode, says in refused.stderr) == (code, True), (refused.stdout, refused.stderr)


def test_records_that_spark_reads_are_not_listed_as_a_number_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    def read_by_spark(answer: Any) -> Any:
        if not isinstance(answer, JobDescription):
            return answer
        return replace(answer, participants=(replace(SOURCE, kind=SPARK_BATCH), SINK))

    view = View(as_json=False, utc=False, watch=False)
    listed = {}
    for name, changed in (("query", read_by_spark), ("other", lambda answer: answer)):
        client = cast(OperatorClient, PreparedClient(changed))
        shown = listings._checkpoints(client, RUNNING, 3, view).listings(Times(now=NOW, utc=False))
        print_listings(shown)
        lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
        (header,) = (line for line in lines if "records read" in line)
        row = lines[-1]
        listed[name] = row[header.index("records read") :].split()[0]
    assert listed["query"] == "-"
    assert listed["other"].replace(",", "").isdigit()


def test_checkpoints_lists_which_outputs_share_a_pass_and_which_are_branches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    how = {"eur": False, "all": False, "lines": True, "former": None}
    sinks = [
        replace(SINK, name=ParticipantName(name), place=f"Kafka topic of-{name}", branch=branch)
        for name, branch in how.items()
    ]

    def with_outputs(answer: Any) -> Any:
        return replace(answer, participants=(SOURCE, *sinks)) if isinstance(answer, JobDescription) else answer

    client = cast(OperatorClient, PreparedClient(with_outputs))
    answer = listings._checkpoints(client, RUNNING, 3, View(as_json=False, utc=False, watch=False))
    print_listings(answer.listings(Times(now=NOW, utc=False)))
    printed = capsys.readouterr().out
    outputs, checkpoints = printed.split("Checkpoints")
    rows = [re.split("  +", line.strip()) for line in outputs.splitlines() if "Kafka topic" in line]
    assert rows == [
        ["eur", "the shared pass", "Kafka topic of-eur"],
        ["all", "the shared pass", "Kafka topic of-all"],
        ["lines", "a branch, which reads the input itself", "Kafka topic of-lines"],
        ["former", "-", "Kafka topic of-former"],
    ]
    assert "records read" in checkpoints
    for row in json.loads(as_json(answer.values)):
        assert {one["name"]: one["branch"] for one in row["outputs"]} == how
        assert row["records_read"] >= 0


def test_checkpoints_lists_the_dead_letters_of_a_job_that_may_have_some(capsys: pytest.CaptureFixture[str]) -> None:
    client = cast(OperatorClient, PreparedClient())
    view = View(as_json=False, utc=False, watch=False)
    answer = listings._checkpoints(client, LETTERS, 10, view)
    print_listings(answer.listings(Times(now=NOW, utc=False)))
    _, table = capsys.readouterr().out.split("Checkpoints")
    header, *rows = table.strip().splitlines()
    listed = [row[header.index("dead letters") :].split()[0] for row in rows]
    values = [row["dead_letters"] for row in json.loads(as_json(answer.values))]
    assert values[1] == {"JSONDecodeError": 3}
    assert values[9] is None, "it was aborted"
    assert listed == ["-" if one is None else str(sum(one.values())) for one in values]
    other = listings._checkpoints(client, RUNNING, 10, view)
    print_listings(other.listings(Times(now=NOW, utc=False)))
    assert "dead letters" not in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "counted"), [(SPARK_BATCH, False), ("kafka", True)])
def test_the_page_shows_no_number_of_records_that_spark_reads(kind: str, counted: bool) -> None:
    def read_by(answer: Any) -> Any:
        if not isinstance(answer, JobDescription):
            return answer
        return replace(answer, participants=(replace(SOURCE, kind=kind), SINK))

    with prepared(read_by) as site:
        page = site.get(f"/jobs/{RUNNING}").live
    (table,) = re.findall(r'<table class="checkpoints">.*?</table>', page)
    cells = [re.findall(r'<td class="number">(.*?)</td>', row) for row in table.split("<tr")]
    read = [one[0] for one in cells if one]
    assert read
    assert {one != "–" for one in read} == {counted}
