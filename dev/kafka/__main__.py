"""``onceward dev kafka`` without the command line's environment, plus ``--prepare-only`` for the setup."""

import argparse
import sys
from pathlib import Path

from onceward.dev.errors import LocalServerError
from onceward.dev.jars import fetch_progress
from onceward.dev.kafka.command import run_dev_kafka
from onceward.dev.kafka.jars import broker_jars


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m onceward.dev.kafka", description="A real Kafka on loopback.")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--transaction-version", type=int, choices=(0, 1, 2))
    parser.add_argument("--directory", type=Path, help="keep the data here; by default it is removed at the end")
    parser.add_argument("--port", type=int, help="of the first broker; by default a free one")
    parser.add_argument(
        "--prepare-only",
        action="store_true",
        help="fetch the broker's jars and archive its classes if need be, and end",
    )
    options = parser.parse_args()
    try:
        if options.prepare_only:
            from onceward.dev.kafka.class_archive import write_class_archive  # brokers alone need no client

            broker_jars(fetch_progress("the broker's"))
            write_class_archive()
            return 0
        return run_dev_kafka(options.brokers, options.transaction_version, options.directory, options.port)
    except LocalServerError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main())
