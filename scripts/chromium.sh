#!/bin/sh
# Finds Chromium, in which the page is tested and drawn. Where it is missing and this is root on a system with apt-get,
# installs Debian's package; otherwise says how. Exit code 1: it is still missing, and the tests that need it are skipped.
set -u

say() { printf 'chromium: %s\n' "$*" >&2; }

find_chromium() { command -v chromium || command -v chromium-browser || command -v google-chrome; }

find_chromium >/dev/null && exit
cure='apt-get install -y chromium'
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    say "installing Debian's package"
    export DEBIAN_FRONTEND=noninteractive
    said=$({ apt-get update -q && timeout 900 apt-get install -qy --no-install-recommends chromium; } 2>&1 </dev/null) &&
        find_chromium >/dev/null && exit
    printf '%s\n' "$said" | tail -n 5 >&2
    say "it could not be installed (the reason is above), so tests in a browser are skipped; try: $cure"
else
    say "it is missing, so tests in a browser are skipped; install it with: sudo $cure (macOS: brew install chromium)"
fi
exit 1
