#!/bin/sh
# Compiles the fuzzer with sanitizers, and runs it.
#
#   native/fuzz/run.sh SECONDS [SEED [ROUNDS]]    a round is 256 inputs; without a seed, one by the clock
set -eu
cd "$(dirname "$0")/.."
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"${CC:-cc}" -std=c11 -O2 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all -Wall -Wextra -Wshadow -Werror \
    -o "$made/fuzz" src/*.c fuzz/fuzz.c -pthread -ldl
seed=${2:-$(date +%s)}
echo "fuzz: seed $seed" >&2
# zstd asks for a window of up to 128 MiB, if a batch says so; more than that is an error
ASAN_OPTIONS=max_allocation_size_mb=130:handle_abort=1:detect_leaks=1 "$made/fuzz" "$1" "$seed" ${3:+"$3"}
