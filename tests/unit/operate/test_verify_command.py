"""The arguments that ``onceward verify`` accepts and refuses before it connects."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from onceward.common.errors import ConfigurationError
from onceward.operate.cli import app
from onceward.operate.connecting import CoordinatorLocation
from onceward.operate.verify import Grade, Property, Result, Verification
from onceward.operate.verify.command import EXIT_CODES, Wanted, run_verify


def refused(
    *,
    inputs: Sequence[str] = ("in",),
    outputs: Sequence[str] = ("out",),
    servers: str | None = "localhost:9092",
    systems: Path | None = None,
    expected_by: str | None = None,
    **columns: Any,
) -> str:
    wanted = Wanted(
        job="job",
        inputs=inputs,
        outputs=outputs,
        servers=servers,
        systems=systems,
        expected_by=expected_by,
        from_earliest=False,
        order=True,
        at_least_once=False,
        patience_s=0.0,
        as_json=False,
        **columns,
    )
    with pytest.raises(ConfigurationError) as refusal:
        run_verify(wanted, CoordinatorLocation(coordinator=None, state_dir=Path("nowhere")))
    assert re.search("Nothing was (judged|read)", str(refusal.value))
    return str(refusal.value)


@pytest.fixture
def clusters(tmp_path: Path) -> Path:
    file = tmp_path / "clusters.toml"
    file.write_text('[clusters.main]\nbootstrap_servers = "a:1"\n[clusters.copy]\nbootstrap_servers = "b:1"\n')
    return file


def test_the_topics_must_be_somewhere_and_in_one_place(clusters: Path) -> None:
    assert "--servers HOST:PORT or with --systems FILE" in refused(servers=None)
    assert "--servers HOST:PORT or with --systems FILE" in refused(systems=clusters)
    assert "names a cluster of --systems FILE" in refused(inputs=["main:in"])
    assert "--input must name topics of one cluster" in refused(servers=None, systems=clusters)
    assert "--output must name topics of one cluster" in refused(
        servers=None, systems=clusters, inputs=["main:in"], outputs=["main:out", "copy:out"]
    )
    assert "one of main, copy; not elsewhere:in" in refused(servers=None, systems=clusters, inputs=["elsewhere:in"])


def test_a_table_is_of_a_system_that_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "systems.toml"
    file.write_text(
        '[clusters.main]\nbootstrap_servers = "a:1"\n[systems.shop]\nkind = "postgres"\ndsn = "env:NOWHERE"\n'
        '[systems.lake]\nkind = "delta"\ntable = "/nowhere"\n[systems.other]\nkind = "unheard-of"\n'
    )
    of: dict[str, Any] = {"systems": file, "servers": None, "inputs": ["main:in"]}
    assert "no installed package can read" in refused(**of, outputs=["other:orders"])
    assert "table is verified alone" in refused(**of, outputs=["main:out", "shop:orders"])
    assert "--delete needs --key" in refused(**of, outputs=["shop:orders"], delete="gone")
    assert "are for tables" in refused(**of, outputs=["main:out"], by=["id"])
    assert "Give SYSTEM:TABLE" in refused(**of, outputs=["shop"])
    assert "one itself" in refused(**of, outputs=["lake:orders"])
    assert "--expected-by os:nothing cannot be loaded" in refused(**of, outputs=["lake"], expected_by="os:nothing")


def test_several_outputs_need_a_mapping() -> None:
    assert "give a mapping with --expected-by MODULE:FUNCTION" in refused(outputs=["good", "rejected"])


def test_a_function_that_cannot_be_loaded_is_named() -> None:
    assert "--expected-by nowhere:copy cannot be loaded" in refused(expected_by="nowhere:copy")
    assert "--expected-by os:nothing cannot be loaded" in refused(expected_by="os:nothing")
    assert "--expected-by os:name is no function" in refused(expected_by="os:name")


def test_unknown_has_its_own_exit_code() -> None:
    assert EXIT_CODES == {Grade.PASS: 0, Grade.FAIL: 1, Grade.UNKNOWN: 10}


@pytest.mark.parametrize(
    ("grades", "overall"),
    [
        ((Grade.PASS, Grade.PASS), Grade.PASS),
        ((Grade.PASS, Grade.UNKNOWN), Grade.UNKNOWN),
        ((Grade.UNKNOWN, Grade.FAIL), Grade.FAIL),
        ((), Grade.UNKNOWN),
    ],
)
def test_unknown_is_never_a_pass(grades: Sequence[Grade], overall: Grade) -> None:
    results = {name: Result(property=name, grade=grade) for name, grade in zip(Property, grades, strict=False)}
    assert Verification(results=results).grade is overall


def test_the_page_and_the_command_have_the_same_options() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "verify.md").read_text()
    listed = set(re.findall(r"^\| `(--[a-z-]+)", page, flags=re.MULTILINE))
    helped = CliRunner().invoke(app, ["verify", "--help"], env={"COLUMNS": "200"}).output
    offered = set(re.findall(r"(?<=\s)--[a-z-]+", helped)) - {"--help", "--coordinator", "--state-dir"}
    assert listed == offered
