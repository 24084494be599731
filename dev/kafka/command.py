"""A local Kafka in the foreground, for interactive use."""

import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from onceward.dev.jars import fetch_progress
from onceward.dev.kafka.cluster import LocalKafka

__all__ = ["run_dev_kafka"]

_LOOK_EVERY_S = 0.5


def run_dev_kafka(
    brokers: int = 1,
    transaction_version: int | None = None,
    directory: Path | None = None,
    port: int | None = None,
    transaction_timeout_scan_ms: int = 10_000,
    topics: Sequence[str] = (),
    partitions: int = 3,
) -> int:
    """Run a local Kafka until SIGINT or SIGTERM, then stop it cleanly; return the exit code.

    Options as in `LocalKafka`; missing ``topics`` are created. Prints the bootstrap servers once the cluster is usable,
    and nothing else on standard output, so that a script can read them. Returns 1, after printing the broker's output,
    if a broker ends by itself. Raises `LocalKafkaError`. Only the main thread can call it, because it handles the two
    signals until it returns.
    """
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    kafka = LocalKafka(
        brokers,
        transaction_version,
        directory,
        port=port,
        transaction_timeout_scan_ms=transaction_timeout_scan_ms,
        progress=fetch_progress("the broker's"),
    )
    try:
        print(f"starting {brokers} broker{'s' if brokers > 1 else ''} ...", file=sys.stderr, flush=True)
        with kafka:
            if topics:
                from onceward.dev.kafka.topics import make_topics  # brokers alone need no client

                make_topics(kafka.bootstrap_servers, topics, partitions=partitions, replicas=brokers)
            print(kafka.bootstrap_servers, flush=True)
            place = f"data in {kafka.directory}" if directory else "data is removed at the end"
            print(
                f"transaction.version {kafka.transaction_version}, {place}; stop with Ctrl-C",
                file=sys.stderr,
                flush=True,
            )
            while not stop.wait(_LOOK_EVERY_S):
                if len(kafka.pids) < brokers:
                    ended = min(set(range(1, brokers + 1)) - kafka.pids.keys())
                    print(f"broker {ended} ended by itself. Its log:\n{kafka.logs(ended)}", file=sys.stderr)
                    return 1
            print("stopping ...", file=sys.stderr, flush=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0
