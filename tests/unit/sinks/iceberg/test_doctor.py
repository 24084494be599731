"""``onceward doctor`` on an Iceberg table: what a preflight would say, and what jobs have left."""

from pathlib import Path

from onceward.operate.doctor.check import Level
from onceward.operate.doctor.clusters import check_clusters
from onceward.operate.doctor.leftovers import check_leftovers
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.values import CheckpointId, Claim, Generation, JobName
from tests.unit.sinks.iceberg.tables import Table, sqlite_catalog

JOB = JobName("orders")


def test_a_table_is_described_its_storage_tried_and_what_the_sink_cannot_write_is_an_error(tmp_path: Path) -> None:
    table = Table(sqlite_catalog(tmp_path), properties={"write.format.default": "orc"})
    system = NamedSystem(kind="iceberg", configuration=table.location)
    fact, error = check_clusters({"lake": (system, ())}, None)
    assert fact.subject == error.subject == "Iceberg table shop.orders"
    assert fact.found.startswith(f"id {table.now().metadata.table_uuid}, the empty table shop.orders, 1 columns, at ")
    assert (error.level, "its files are orc" in error.found) == (Level.ERROR, True)
    (refused,) = check_clusters({"lake": (system, ["orders"])}, None)
    assert (refused.subject, "is one itself" in refused.found) == ("system lake", True)
    assert list(check_leftovers({"lake": system}, None)) == []
    claim = Claim(store_id="store", generation=Generation(3), completed=CheckpointId(7), holder="driver")
    table.system().take_claim(JOB, claim, [])
    (line,) = check_leftovers({"lake": system}, None)
    assert line.found == "claimed by store store, generation 3; 0 leftovers"
