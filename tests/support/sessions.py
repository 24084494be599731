"""A Kafka sink whose session a test replaces."""

from typing import ClassVar

from onceward import KafkaSink
from onceward.connections.admin import reach
from onceward.connectors.interfaces import JobContext
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.driver.session import KafkaSinkSession

__all__ = ["SessionSink"]


class SessionSink(KafkaSink):
    """Connects as ``session``."""

    session: ClassVar[type[KafkaSinkSession]] = KafkaSinkSession

    def connect(self, context: JobContext) -> KafkaSinkSession:
        return self.session(self, context, ControlPlane(self.cluster, links=context.links), reach(self.cluster))
