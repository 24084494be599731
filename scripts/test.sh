#!/bin/sh
# All tests, in two runs: those without a broker, then those with one. Both have two workers more than there are cores,
# because tests wait for leases and timeouts; on brokers all share one broker, and each has its own Spark. One worker runs all
# tests of a file, and slow files begin first (tests/conftest.py). Both runs pass the arguments to pytest, so a test of
# either run can be named. With -n0 there are no workers. Tests that fail in the first run do not keep the second from running.
set -eu
cd "$(dirname "$0")/.."

# pytest's exit codes: tests failed, and there was nothing to run
FAILED=1
NONE=5

run() {
    .venv/bin/python -m pytest -p tests.support.flaky --dist loadfile --no-loadscope-reorder --durations=15 "$@" && return
    code=$?
    case "$code" in
    "$FAILED") end=$FAILED ;;
    "$NONE") nothing=$((nothing + 1)) ;;
    *) exit "$code" ;;
    esac
}

# Both runs add their flaky tests to this list.
PYTEST_FLAKY_LIST=$(mktemp)
export PYTEST_FLAKY_LIST
show_flaky() {
    [ ! -s "$PYTEST_FLAKY_LIST" ] || printf '\ntest: flaky, add to tests/flaky.md:\n%s\n' "$(cat "$PYTEST_FLAKY_LIST")" >&2
    rm -f "$PYTEST_FLAKY_LIST"
}
trap show_flaky EXIT

end=0
nothing=0
workers=$(($(getconf _NPROCESSORS_ONLN) + 2))
# the tests of the page in a browser need Chromium; without it they are skipped, with the reason
sh scripts/chromium.sh || true
printf 'test: without brokers\n' >&2
run -n "$workers" tests/unit tests/scenarios tests/mutants tests/simulation tests/explorer "$@"
printf 'test: on real brokers\n' >&2
# the network tests need toxiproxy, which is built once; without it they are skipped, with the reason
.venv/bin/python -m onceward.dev.toxiproxy >/dev/null || true
run -n "$workers" tests/integration tests/network tests/crash tests/checker "$@"
[ "$nothing" -lt 2 ] || exit "$NONE"
exit "$end"
