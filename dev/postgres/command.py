"""A local PostgreSQL in the foreground, for interactive use."""

import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from onceward.dev.jars import fetch_progress
from onceward.dev.postgres.server import LocalPostgres

__all__ = ["run_dev_postgres"]

_LOOK_EVERY_S = 0.5


def run_dev_postgres(directory: Path | None = None, port: int | None = None) -> int:
    """Run a local PostgreSQL until SIGINT or SIGTERM, then stop it cleanly; return the exit code.

    Prints the database's URL once it takes connections, and nothing else on standard output, so that a script can read
    it. Returns 1, after printing the server's output, if the server ends by itself. Raises `LocalServerError`. Only the
    main thread can call it, because it handles the two signals until it returns.
    """
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with LocalPostgres(directory, port=port, progress=fetch_progress("PostgreSQL's")) as postgres:
            print(postgres.url, flush=True)
            place = f"data in {postgres.directory}" if directory else "data is removed at the end"
            print(f"{place}; stop with Ctrl-C", file=sys.stderr, flush=True)
            while not stop.wait(_LOOK_EVERY_S):
                if postgres.pid is None:
                    print(f"PostgreSQL ended by itself. Its log:\n{postgres.log()}", file=sys.stderr)
                    return 1
            print("stopping ...", file=sys.stderr, flush=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0
