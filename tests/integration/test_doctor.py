"""`onceward doctor` on a real broker and a real Spark: it says what a preflight would say, and changes nothing."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from typer.testing import CliRunner

from onceward.dev.kafka import LocalKafka
from onceward.operate.cli import app
from tests.support.processes import ONCEWARD
from tests.support.shared_kafka import SharedKafka
from tests.support.topics import Topics

RECEIPTS = "onceward"


def ask(*options: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Return the exit code, and the lines by their subject."""
    done = CliRunner().invoke(app, ["doctor", "--json", *options], catch_exceptions=False)
    lines: dict[str, list[dict[str, str]]] = {}
    for line in json.loads(done.stdout):
        lines.setdefault(line["subject"], []).append(line)
    return done.exit_code, lines


@pytest.fixture
def fresh() -> LocalKafka:
    """A broker on which no job has run."""
    return LocalKafka(heap="256m")


def test_doctor_asks_a_new_cluster_and_leaves_it_without_receipts(fresh: LocalKafka, job: str, tmp_path: Path) -> None:
    with fresh:
        topics = Topics(fresh.bootstrap_servers, job)
        orders = topics.create("orders", partitions=2)
        where = ("--cluster", fresh.bootstrap_servers, "--state-dir", str(tmp_path / "state"))
        code, lines = ask(*where, "--job", job, "--topic", orders)
        assert code == 0
        assert RECEIPTS not in topics.admin.list_topics(timeout=30).topics
        fact, *warnings = lines[f"topic {orders}"]
        assert fact["found"].startswith("2 partitions, replication factor 1, min ISR 1")
        assert [line["found"] for line in warnings] == [
            "has replication factor 1, below 3",
            "min.insync.replicas is 1, below 2",
        ]
        assert all(line["level"] == "warning" and line["remedy"] for line in warnings)
        assert lines["transaction timeout"][0]["found"] == "0:15:00"
        assert "rights on transactional ids and groups" not in lines

        code, lines = ask(*where, "--topic", "nothing")
        assert code == 1
        (missing,) = lines["topic nothing"]
        assert (missing["level"], missing["remedy"]) == ("error", "create it")
        assert lines["rights on transactional ids and groups"][0]["level"] == "unknown"


def test_doctor_names_the_cluster_that_does_not_answer_and_asks_the_other(kafka: SharedKafka, tmp_path: Path) -> None:
    file = tmp_path / "clusters.toml"
    file.write_text(
        '[clusters.gone]\nbootstrap_servers = "127.0.0.1:1"\n'
        f'[clusters.there]\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
    )
    code, lines = ask("--clusters", str(file), "--state-dir", str(tmp_path / "state"))
    assert code == 1
    (gone,) = lines["system gone"]
    assert gone["level"] == "error"
    assert "cannot be reached" in gone["found"]
    assert lines["cluster there"][0]["found"].startswith(f"{kafka.cluster_id}, 1 brokers")


def ask_master(
    master: str, directory: Path, *options: str, **environment: str
) -> tuple[int, dict[str, dict[str, str]]]:
    """The same in a process of its own: this one may have a Spark session."""
    words = ("doctor", "--json", "--state-dir", str(directory / "state"), "--master", master, *options)
    done = subprocess.run(
        [sys.executable, *ONCEWARD, *words], capture_output=True, env=os.environ | environment, timeout=150, check=False
    )
    return done.returncode, {line["subject"]: line for line in json.loads(done.stdout)}


@pytest.mark.parametrize("master", ["local[1]", "local-cluster[2,1,1024]"])
def test_doctor_asks_executors_by_a_task_and_names_what_theirs_lack(master: str, tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"
    for library in ("pyarrow", "pyiceberg"):
        (libraries / library).mkdir(parents=True)
        (libraries / library / "__init__.py").write_text("__version__ = '0.9'\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{libraries}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o700)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/lake"}
    with closing(load_catalog("default", **catalog)) as opened:
        opened.create_namespace("shop")
        opened.create_table("shop.orders", pa.schema([("value", pa.binary())]))
    systems = tmp_path / "systems.toml"
    settings = ", ".join(f'{name} = "{value}"' for name, value in catalog.items())
    systems.write_text(f'[systems.lake]\nkind = "iceberg"\ntable = "shop.orders"\ncatalog = {{ {settings} }}\n')
    code, lines = ask_master(master, tmp_path, "--systems", str(systems), PYSPARK_PYTHON=str(python))
    assert lines["executors: Python"]["level"] == lines["executors: confluent-kafka"]["level"] == "ok"
    old_one = lines["executors: pyarrow"]
    assert (old_one["level"], old_one["found"]) == ("error", "pyarrow is 0.9, at least 18 is needed")
    for_the_table = lines["executors: pyiceberg for lake"]
    assert (for_the_table["level"], for_the_table["found"]) == ("error", "pyiceberg is 0.9, at least 0.12 is needed")
    assert for_the_table["remedy"].startswith("install onceward[iceberg] for")
    assert code == 1


def test_doctor_says_that_a_master_cannot_be_used(tmp_path: Path) -> None:
    line = ask_master("no-such-master", tmp_path)[1]["executors"]
    assert (line["level"], "no-such-master" in line["found"]) == ("error", True)
