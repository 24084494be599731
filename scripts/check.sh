#!/bin/sh
# All quick checks. The fastest come first, and the first failure stops them; then the types are checked in parallel with
# the tests. Property-based tests run a quarter of their examples.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'check: %s\n' "$1" >&2; }

step() {
    say "$1"
    shift
    "$@"
}

step 'format' .venv/bin/ruff format --check --quiet .
step 'lint' .venv/bin/ruff check --quiet .
step 'stubs are what the .proto files say' .venv/bin/python scripts/protos.py --check
say 'types, beside unit and scenario tests'
.venv/bin/mypy --no-error-summary >&2 &
types=$!
trap 'kill "$types" 2>/dev/null || true' EXIT
# two workers more than cores: tests that wait for a lease or a process leave a core idle; at the end, a worker without tests
# takes some from another
workers=$(($(getconf _NPROCESSORS_ONLN) + 2))
.venv/bin/python -m pytest -p tests.support.flaky -q -n "$workers" --dist worksteal \
    --hypothesis-profile=quick -m 'not slow and not kill' \
    tests/unit tests/scenarios tests/mutants tests/mutation tests/versions tests/checker/test_mutated_histories.py && tests=0 || tests=$?
wait "$types" || {
    say 'the types are wrong, as said above'
    exit 1
}
exit "$tests"
