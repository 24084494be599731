"""``python -m benchmarks``: our job and its peers.

``coordinator`` measures the coordinator alone, without a broker; ``latency`` measures end-to-end latency over the
interval, by rate and partitions; ``settle`` measures how quickly many pending transactions are committed; ``reading``
measures reading into Spark; ``queries`` measures Structured Streaming queries; ``outputs`` measures one
job with several outputs beside several jobs; ``scale`` measures our job with more partitions, executors and slots, and
larger records; ``start`` measures how long a job takes to its first settled checkpoint; ``letters`` measures what dead
letters cost.
"""

import signal
import sys

from benchmarks.coordinator.main import main as coordinator
from benchmarks.latency import main as latency
from benchmarks.letters import main as letters
from benchmarks.main import main as systems
from benchmarks.outputs import main as outputs
from benchmarks.queries.main import main as queries
from benchmarks.reading import main as reading
from benchmarks.scale.main import main as scale
from benchmarks.settle import main as settle
from benchmarks.start import main as start

if __name__ == "__main__":
    # On SIGTERM exit normally, so that started processes are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    match sys.argv[1:]:
        case ["coordinator", *arguments]:
            coordinator(arguments)
        case ["latency", *arguments]:
            latency(arguments)
        case ["letters", *arguments]:
            letters(arguments)
        case ["outputs", *arguments]:
            outputs(arguments)
        case ["queries", *arguments]:
            queries(arguments)
        case ["reading", *arguments]:
            reading(arguments)
        case ["scale", *arguments]:
            scale(arguments)
        case ["settle", *arguments]:
            settle(arguments)
        case ["start", *arguments]:
            start(arguments)
        case arguments:
            systems(arguments)
