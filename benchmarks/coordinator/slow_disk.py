"""``python -m benchmarks.coordinator.slow_disk MILLISECONDS serve ...``: the command, each commit so much slower."""

import sys
import time

from sqlalchemy import Connection, Engine, event

from onceward.operate.cli import main


def _delay(_connection: Connection) -> None:
    time.sleep(_SECONDS)


if __name__ == "__main__":
    _SECONDS = float(sys.argv.pop(1)) / 1000
    event.listen(Engine, "commit", _delay)
    main()
