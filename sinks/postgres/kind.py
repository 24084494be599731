"""PostgreSQL as a kind of system (entry point ``onceward.systems``)."""

from typing import Final

from onceward.protocol.kinds import Kind

__all__ = ["POSTGRES"]

POSTGRES: Final = Kind(
    documents={"postgres-staged": "onceward.sinks.postgres.documents:check_committable"},
    configuration="onceward.sinks.postgres.dsn:dsn_of",
    system="onceward.sinks.postgres.control.system:PostgresSystem.open",
    doctor=("onceward.sinks.postgres.driver.doctor:examine",),
    reader="onceward.sinks.postgres.control.reading:open_table",
)
