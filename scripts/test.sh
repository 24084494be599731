#!/bin/sh
# All tests, on four workers: most tests wait for a lease, a broker or a process. A worker whose tests need them has its own
# broker and Spark, at most 2 GB. One worker runs all tests of a file, and slow files begin first (tests/conftest.py).
# The arguments go to pytest: the name of a test, -k, or -n0 for no workers.
set -eu
cd "$(dirname "$0")/.."

# the network tests need toxiproxy, which is built once; without it they are skipped, with the reason
.venv/bin/python -m onceward.coordinator.dev.toxiproxy >/dev/null || true
exec .venv/bin/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder "$@"
