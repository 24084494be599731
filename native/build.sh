#!/bin/sh
# Compiles the library. Needs a C compiler and no headers but the C library's.
#
#   native/build.sh [OUT]    default: native/onceward_native/libonceward_native.so
#
#   CC, CFLAGS               as usual; CFLAGS come last
set -eu
cd "$(dirname "$0")"
out=${1:-onceward_native/libonceward_native.so}
# Written beside its place and moved: a process that has the old one loaded keeps it.
"${CC:-cc}" -std=c11 -O3 -g -Wall -Wextra -Wshadow -Wvla -fvisibility=hidden -fPIC -shared -o "$out.new" src/*.c -pthread -ldl ${CFLAGS:-}
mv "$out.new" "$out"
