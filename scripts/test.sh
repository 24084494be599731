#!/bin/sh
# Everything, in two runs: what needs no broker on all cores at once, then what does, one after the other.
# The arguments go to pytest, for both: a test that only one of them has is found there.
set -eu
cd "$(dirname "$0")/.."

NONE=5 # pytest's exit code when there was nothing to run

run() {
    .venv/bin/python -m pytest "$@" && return
    code=$?
    [ "$code" = "$NONE" ] || exit "$code"
    nothing=$((nothing + 1))
}

nothing=0
printf 'test: without brokers, on all cores\n' >&2
run -n auto tests/unit tests/scenarios tests/mutants tests/simulation tests/explorer "$@"
printf 'test: on real brokers\n' >&2
# the network tests need toxiproxy, which is built once; without it they are skipped, and say why
.venv/bin/python -m coordinator.dev.toxiproxy >/dev/null || true
run tests/checker tests/crash tests/integration tests/network "$@"
[ "$nothing" -lt 2 ] || exit "$NONE"
