"""The peers, each with what it takes to set it up and its best settings found."""

from benchmarks.peers.c.system import CMark
from benchmarks.peers.flink.system import Flink
from benchmarks.peers.quix.system import Quix
from benchmarks.peers.streams.system import Streams
from benchmarks.systems import System

__all__ = ["PEERS"]

PEERS: tuple[System, ...] = (Flink(), Streams(), Quix(), CMark())
