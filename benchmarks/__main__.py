"""``python -m benchmarks``: our job and its peers.

``coordinator`` measures the coordinator by itself, without a broker, ``settle`` how quickly many pending transactions
are committed, and ``scale`` how our job's figures change with partitions, executors, larger records, and slots.
"""

import signal
import sys

from benchmarks.coordinator.main import main as coordinator
from benchmarks.main import main as systems
from benchmarks.scale.main import main as scale
from benchmarks.settle import main as settle

if __name__ == "__main__":
    # Asked to end, it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    match sys.argv[1:]:
        case ["coordinator", *arguments]:
            coordinator(arguments)
        case ["scale", *arguments]:
            scale(arguments)
        case ["settle", *arguments]:
            settle(arguments)
        case arguments:
            systems(arguments)
