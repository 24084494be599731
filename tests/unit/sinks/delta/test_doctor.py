"""``onceward doctor`` on a Delta table: what a preflight would say, and what jobs have left."""

from pathlib import Path

from onceward.operate.doctor.check import Check, Level
from onceward.operate.doctor.clusters import check_clusters
from onceward.operate.doctor.leftovers import check_leftovers
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.values import CheckpointId, Claim, Generation, JobName
from tests.unit.sinks.delta.tables import Table

JOB = JobName("orders")


def asked(table: Table, *names: str) -> list[Check]:
    system = NamedSystem(kind="delta", configuration=table.location)
    return list(check_clusters({"lake": (system, names)}, JOB))


def test_a_sound_table_is_described_and_its_storage_tried(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    (fact,) = asked(table)
    assert fact.subject == f"Delta table {table.path}"
    assert fact.found.startswith(f"id {table.now().metadata().id}, version 0, 1 columns, writer version 2")
    assert [one for one in table.path.rglob("*") if one.is_file() and "_delta_log" not in one.parts] == []


def test_what_the_sink_does_not_keep_to_is_an_error(tmp_path: Path) -> None:
    table = Table(tmp_path / "table", configuration={"delta.setTransactionRetentionDuration": "interval 1 days"})
    _, error = asked(table)
    assert (error.level, "the proof of a commit expires" in error.found) == (Level.ERROR, True)


def test_a_table_that_is_not_there_and_a_name_too_many_are_errors(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    (error,) = asked(table, "orders")
    assert "is one itself" in error.found
    (table.path / "_delta_log" / f"{0:020}.json").unlink()
    (error,) = asked(table)
    assert (error.subject, error.level) == ("system lake", Level.ERROR)


def test_a_claim_and_what_is_not_committed_are_listed(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    lake = {"lake": NamedSystem(kind="delta", configuration=table.location)}
    assert list(check_leftovers(lake, None)) == []
    claim = Claim(store_id="store", generation=Generation(3), completed=CheckpointId(7), holder="driver")
    table.system().take_claim(JOB, claim, [])
    (line,) = check_leftovers(lake, None)
    assert (line.subject, line.found) == (
        "job orders in system lake",
        "claimed by store store, generation 3; 0 leftovers",
    )
    table.system().forget(JOB, claim)
    assert list(check_leftovers(lake, None)) == []
