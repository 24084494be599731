"""The parts that are mutated together, and the tests that must notice."""

from dataclasses import dataclass

__all__ = ["PARTS", "Part"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Glob patterns of the files to mutate and of those to exclude, and the tests to run."""

    files: tuple[str, ...]
    without: tuple[str, ...] = ()
    tests: tuple[str, ...]
    too_slow: tuple[str, ...] = ()
    """Tests that start processes or wait for seconds: too slow to run for every mutant."""


# No test here may use gRPC in its own process: mutmut forks this process, and gRPC does not survive a fork.
PARTS = {
    "protocol": Part(
        files=("protocol/*.py",),
        tests=("tests/unit/protocol", "tests/scenarios"),
        too_slow=("tests/unit/protocol/test_store_machine.py",),
    ),
    "pipeline": Part(
        files=("driver/*.py", "common/backoff.py"),
        # These use Spark and are tested on Spark.
        without=("*/pipeline.py",),
        tests=("tests/unit/driver", "tests/unit/test_backoff.py", "tests/unit/sources/test_narrowing.py"),
    ),
    "sinks": Part(
        files=("sinks/kafka/*.py", "sinks/kafka/control/*.py", "sinks/kafka/driver/*.py", "sinks/kafka/executor/*.py"),
        # These use a broker or librdkafka and are tested on brokers.
        without=tuple(
            f"*/{each}.py"
            for each in ("at_least_once", "brokers", "control_plane", "preflight", "producers", "sink", "writer")
        ),
        tests=(
            "tests/unit/sinks",
            "tests/unit/store/test_damage.py",
            "tests/simulation/test_claims_on_the_model.py",
            "tests/simulation/test_kafka_model_clients.py",
        ),
    ),
    "sources": Part(
        files=(
            "sources/kafka/*.py",
            "sources/kafka/control/*.py",
            "sources/kafka/driver/*.py",
            "sources/kafka/executor/*.py",
        ),
        # These use a broker and are tested on brokers.
        without=tuple(f"*/{each}.py" for each in ("clients", "leaders", "metadata", "source")),
        tests=("tests/unit/sources",),
    ),
    "service": Part(
        files=tuple(
            f"coordinator/service/{each}.py"
            for each in (
                *("budget", "deadlines", "documents", "engine", "housekeeping", "listen"),
                *("group_commit", "orphan", "orphans"),
            )
        ),
        tests=tuple(
            f"tests/unit/service/test_{each}.py"
            for each in ("orphans", "group_commit", "bookkeeping", "documents", "engine", "listen")
        ),
    ),
    "store": Part(
        files=("coordinator/store/*.py",),
        tests=tuple(
            f"tests/unit/store/test_{each}.py"
            for each in ("store", "audit", "codec", "decisions", "losses", "retention", "damage", "opening", "postgres")
        ),
        too_slow=(
            "tests/unit/store/test_damage.py::test_a_wrong_byte_anywhere_gives_the_truth_or_less_and_never_something_else",
        ),
    ),
    "wire": Part(
        files=("wire/*.py",),
        tests=("tests/unit/client/test_decoding.py", "tests/unit/client/test_wire.py"),
    ),
    "verify": Part(
        files=("operate/verify/*.py",),
        # These query a cluster or a coordinator and are tested with both.
        without=("*/cluster.py", "*/asking.py", "*/command.py", "*/verifier.py", "*/topic_output.py"),
        tests=(
            *(
                f"tests/unit/operate/test_verify_{each}.py"
                for each in ("decisions", "external_sort", "positions", "quiescence", "verdict")
            ),
            "tests/checker/test_mutated_histories.py",
        ),
    ),
}
