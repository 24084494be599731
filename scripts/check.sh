#!/bin/sh
# All quick checks, in the order in which they fail fastest. Stops at the first that fails.
set -eu
cd "$(dirname "$0")/.."

step() {
    printf 'check: %s\n' "$1" >&2
    shift
    "$@"
}

step 'format' .venv/bin/ruff format --check --quiet .
step 'lint' .venv/bin/ruff check --quiet .
step 'stubs are what the .proto files say' .venv/bin/python scripts/protos.py --check
step 'types' .venv/bin/mypy --no-error-summary .
step 'unit and scenario tests' \
    .venv/bin/python -m pytest -q -n auto -m 'not slow and not kill' tests/unit tests/scenarios tests/mutants
