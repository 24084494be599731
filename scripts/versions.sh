#!/bin/sh
# The tests that meet Spark, on other versions of PySpark than that of constraints.txt, and those that meet PostgreSQL, on
# its other major versions, one after the other. Each PySpark has its environment in the user's cache. What a version
# lacks is skipped, with the reason. By default all versions.
#
#   PYSPARK="4.0.5 4.2.1"  POSTGRES="14 18"  scripts/versions.sh      PYTEST   more arguments for pytest
set -eu
cd "$(dirname "$0")/.."
if [ -z "${PYSPARK:-}${POSTGRES:-}" ]; then
    PYSPARK='4.0.5 4.1.4 4.2.1' POSTGRES='14 15 16 18'
fi
cache=${ONCEWARD_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/onceward}
failed=''
sh scripts/setup.sh
for version in ${POSTGRES:-}; do
    printf 'versions: PostgreSQL %s\n' "$version" >&2
    # shellcheck disable=SC2086 # several arguments
    ONCEWARD_POSTGRES=$version .venv/bin/python -m pytest -n2 --dist loadfile -q -k 'postgres or leader or lead or term' \
        tests/unit/store tests/unit/protocol/test_store_machine.py tests/unit/service tests/unit/traces \
        tests/integration/test_local_postgres.py tests/integration/test_leaders.py ${PYTEST:-} ||
        failed="$failed PostgreSQL-$version"
done
for version in ${PYSPARK:-}; do
    export ONCEWARD_PYSPARK="$version" ONCEWARD_VENV="$cache/pyspark-$version"
    sh scripts/setup.sh
    printf 'versions: PySpark %s\n' "$version" >&2
    # shellcheck disable=SC2086 # several arguments
    "$ONCEWARD_VENV/bin/python" -m pytest -n0 -q tests/unit/pipeline tests/integration/test_pipeline.py \
        tests/integration/test_reading.py tests/integration/test_streaming_sink.py \
        tests/integration/test_stream_examples.py ${PYTEST:-} || failed="$failed PySpark-$version"
done
[ -z "$failed" ] || {
    printf 'versions: not passed:%s\n' "$failed" >&2
    exit 1
}
