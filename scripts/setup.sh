#!/bin/sh
# Sets up what this repository needs on a fresh machine, in .venv and in the user's cache:
# a Python environment with the versions of constraints.txt, a check for Java, the compiled library of onceward-native where
# there is a C compiler, the jars of the local Kafka and PostgreSQL, and archives of the classes that brokers and Spark load
# at their start.
# Run by every target of the Makefile; takes half a second if nothing changed since the last run.
#
#   scripts/setup.sh [--no-broker]
#
#   PYTHON            the Python that creates the environment (default: the first that is new enough)
#   ONCEWARD_VENV     the environment's directory (default: .venv)
#   ONCEWARD_PYSPARK  the version of PySpark (default: that of constraints.txt)
#   CC                the C compiler (default: cc)
set -eu

cd "$(dirname "$0")/.."
VENV=${ONCEWARD_VENV:-.venv}
STAMP=$VENV/onceward-setup
LOG=$VENV/onceward-setup.log
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { printf 'setup: %s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

# Prints the command that installs a package here; arguments: its name for apt, dnf and Homebrew.
install_with() {
    as_root=''
    [ "$(id -u 2>/dev/null || echo 0)" = 0 ] || as_root='sudo '
    if command -v apt-get >/dev/null 2>&1; then
        echo "${as_root}apt-get install -y $1"
    elif command -v dnf >/dev/null 2>&1; then
        echo "${as_root}dnf install -y $2"
    elif command -v brew >/dev/null 2>&1; then
        echo "brew install $3"
    else
        echo "your system's package manager (Debian: apt-get install -y $1; macOS: brew install $3)"
    fi
}

# Prints the first Python that is new enough; exits with a one-sentence error if none is usable.
find_python() {
    old=''
    for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            old=${old:-$version}
            continue
        fi
        "$candidate" -c 'import ensurepip, venv' 2>/dev/null ||
            die "Python $version has no venv module; install it with: $(install_with "python$version-venv" "python$version" "python@$version")"
        echo "$candidate"
        return
    done
    cure=$(install_with 'python3.11 python3.11-venv' python3.11 python@3.11)
    [ -z "$old" ] || die "Python 3.11 or newer is needed and this is $old; install it with: $cure"
    die "Python 3.11 or newer is needed and ${PYTHON:-python3} does not run; install it with: $cure"
}

check_java() {
    cure=$(install_with openjdk-17-jre-headless java-17-openjdk-headless openjdk@17)
    java=java
    [ -z "${JAVA_HOME:-}" ] || java=$JAVA_HOME/bin/java
    said=$("$java" -version 2>&1) ||
        die "Java 17 or newer is needed (for Spark and the local Kafka) and $java does not run; install it with: $cure"
    version=$(printf '%s\n' "$said" | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1)
    [ "${version:-0}" -ge 17 ] ||
        die "Java 17 or newer is needed (for Spark and the local Kafka) and $java is ${version:-of unknown version}; install it with: $cure"
}

constraints() {
    if [ -n "${ONCEWARD_PYSPARK:-}" ]; then
        sed "s/^pyspark==.*/pyspark==$ONCEWARD_PYSPARK/" constraints.txt
    else
        cat constraints.txt
    fi
}

# The inputs of the environment. They include its path, because an environment cannot be moved.
fingerprint() {
    pwd
    cat pyproject.toml
    constraints
}

# pip's long output goes to the log; the terminal shows a line per slow step, and one per ten packages.
pip_install() {
    { "$VENV/bin/python" -m pip install -c "$VENV/onceward-constraints.txt" "$@" 2>&1 && echo done >"$VENV/onceward-pip"; } | tee -a "$LOG" |
        awk '/^Collecting /{ if (++n % 10 == 0) { printf "setup: ... %d packages\n", n; fflush() } }
             /^ *Downloading .*pyspark/{ print "setup: ... downloading PySpark"; fflush() }
             /^ *Building wheel for pyspark .*started|^Building wheels.*pyspark/{ print "setup: ... building PySpark"; fflush() }
             /^Installing collected/{ print "setup: ... unpacking"; fflush() }' >&2
    [ -e "$VENV/onceward-pip" ] || {
        tail -n 15 "$LOG" >&2
        die "the packages could not be installed (all that pip said is in $LOG)"
    }
    rm -f "$VENV/onceward-pip"
}

make_environment() {
    python=$(find_python)
    long=''
    if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        long=' (a minute or more: PySpark alone is 450 MB)'
        say "making $VENV with $("$python" --version 2>&1)"
        "$python" -m venv --clear "$VENV" || die "the environment $VENV could not be made (the reason is above)"
    fi
    rm -f "$STAMP" "$VENV/onceward-pip"
    : >"$LOG"
    constraints >"$VENV/onceward-constraints.txt"
    say "installing $(grep -c == constraints.txt) packages into $VENV$long"
    # Build tools first: the other packages are then built with exactly these, not with the newest releases.
    pip_install setuptools
    pip_install --no-build-isolation -e '.[spark,test]'
    fingerprint >"$STAMP"
}

# What the compiled library is made of.
native_fingerprint() {
    cat native/build.sh native/setup.py native/pyproject.toml native/src/*
}

# Compiles the library that reads and writes batches of records. It is not needed: librdkafka does that without it.
make_native() {
    native=$VENV/onceward-native
    ! { native_fingerprint | cmp -s - "$native"; } 2>/dev/null || return 0
    rm -f "$native" native/onceward_native/libonceward_native.so # an older library does not fit the modules beside it
    if ! command -v "${CC:-cc}" >/dev/null 2>&1; then
        say "there is no C compiler, so onceward-native is left out: librdkafka reads and writes all records; install one with: $(install_with 'gcc libc6-dev' gcc gcc)"
        return 0
    fi
    say 'compiling onceward-native'
    if ! sh native/build.sh >>"$LOG" 2>&1; then
        say "onceward-native does not compile (the reason is in $LOG), so it is left out: librdkafka reads and writes all records"
        return 0
    fi
    pip_install --no-build-isolation --no-deps -e ./native
    native_fingerprint >"$native"
}

broker=yes
[ "${1:-}" != --no-broker ] || broker=no

if ! { "$VENV/bin/python" -c '' && fingerprint | cmp -s - "$STAMP"; } 2>/dev/null; then
    make_environment
fi
check_java
make_native
if [ "$broker" = yes ]; then
    "$VENV/bin/python" -m onceward.dev.kafka --prepare-only
    "$VENV/bin/python" -m onceward.dev.postgres >/dev/null
    "$VENV/bin/onceward" archive-classes >>"$LOG" # half a minute once; each start of Spark then takes half the time
fi
