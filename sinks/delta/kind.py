"""Delta tables as a kind of system (entry point ``onceward.systems``)."""

from typing import Final

from onceward.protocol.kinds import Kind

__all__ = ["DELTA"]

DELTA: Final = Kind(
    documents={"delta-files": "onceward.sinks.delta.documents:check_committable"},
    configuration="onceward.sinks.delta.location:location_of",
    system="onceward.sinks.delta.control.system:DeltaSystem.open",
    doctor=("onceward.sinks.delta.driver.doctor:examine",),
    reader="onceward.sinks.delta.control.reading:open_table",
)
