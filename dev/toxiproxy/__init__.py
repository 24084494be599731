"""A real toxiproxy on this machine: network faults for tests. Needs the package toxiproxy-python."""

from onceward.dev.errors import ToxiproxyError
from onceward.dev.toxiproxy.binary import toxiproxy_server
from onceward.dev.toxiproxy.link import Link, Stream, Toxic
from onceward.dev.toxiproxy.server import LocalToxiproxy

__all__ = ["Link", "LocalToxiproxy", "Stream", "Toxic", "ToxiproxyError", "toxiproxy_server"]
