"""A real toxiproxy on this machine: network faults for tests. Needs the package toxiproxy-python."""

from onceward.coordinator.dev.errors import ToxiproxyError
from onceward.coordinator.dev.toxiproxy.binary import toxiproxy_server
from onceward.coordinator.dev.toxiproxy.link import Link, Stream, Toxic
from onceward.coordinator.dev.toxiproxy.server import LocalToxiproxy

__all__ = ["Link", "LocalToxiproxy", "Stream", "Toxic", "ToxiproxyError", "toxiproxy_server"]
