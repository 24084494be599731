#!/bin/sh
# The tests that meet Spark, on other versions of PySpark than that of constraints.txt, one after the other. Each version
# has its environment in the user's cache. What a version lacks is skipped, with the reason.
#
#   scripts/versions.sh [VERSION ...]      PYTEST   more arguments for pytest
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 4.0.5 4.1.4 4.2.1
cache=${ONCEWARD_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/onceward}
failed=''
for version in "$@"; do
    export ONCEWARD_PYSPARK="$version" ONCEWARD_VENV="$cache/pyspark-$version"
    sh scripts/setup.sh
    printf 'versions: PySpark %s\n' "$version" >&2
    # shellcheck disable=SC2086 # several arguments
    "$ONCEWARD_VENV/bin/python" -m pytest -n0 -q tests/unit/pipeline tests/integration/test_pipeline.py \
        tests/integration/test_reading.py tests/integration/test_streaming_sink.py \
        tests/integration/test_stream_examples.py ${PYTEST:-} || failed="$failed $version"
done
[ -z "$failed" ] || {
    printf 'versions: not passed:%s\n' "$failed" >&2
    exit 1
}
