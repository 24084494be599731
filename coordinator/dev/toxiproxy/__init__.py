"""A real toxiproxy on this machine: network faults for tests. Needs the package toxiproxy-python."""

from coordinator.dev.toxiproxy.binary import toxiproxy_server
from coordinator.dev.toxiproxy.errors import ToxiproxyError
from coordinator.dev.toxiproxy.link import Link, Stream, Toxic
from coordinator.dev.toxiproxy.server import LocalToxiproxy

__all__ = ["Link", "LocalToxiproxy", "Stream", "Toxic", "ToxiproxyError", "toxiproxy_server"]
