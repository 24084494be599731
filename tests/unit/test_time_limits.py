"""No call that leaves the process may wait without a limit (docs/reference/limits.md#time-limits).

These tests read the source, so new calls need no test of their own. `test_silent_brokers.py` and
`test_time_limits.py` in tests/integration and `service/test_silent_peers.py` here test the effect of the limits.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from onceward import KafkaCluster
from onceward.client.calls import CALL_TIMEOUT_S
from onceward.connections.limits import CLIENT_LIMITS, SILENCE_MS
from onceward.connections.requests import REQUEST_TIMEOUT_MS
from onceward.sinks.kafka.executor.producers import PoolKey, ProducerPool
from onceward.wire.channel import KeepAlive
from tests.support.rooms import ROOMS

pytestmark = pytest.mark.whole_tree

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = [
    file
    for package in ROOMS
    for file in sorted((ROOT / package).rglob("*.py"))
    if not file.is_relative_to(ROOT / "dev") and not file.is_relative_to(ROOT / "wire" / "v1")
]
NOTICED_S = 15.0
"""Seconds within which a silent peer must be noticed."""


@cache
def nodes(file: Path) -> list[ast.AST]:
    """Every test reads the whole product, so a file is parsed once."""
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


@cache
def calls(file: Path) -> list[ast.Call]:
    return [node for node in nodes(file) if isinstance(node, ast.Call)]


def where(file: Path, node: ast.Call) -> str:
    return f"{file.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:90]}"


def limited(node: ast.Call) -> bool:
    return any(keyword.arg is not None and "timeout" in keyword.arg for keyword in node.keywords)


def test_every_grpc_call_has_a_deadline() -> None:
    """Stubs are called through `Caller.call`, which sets a deadline, or with one."""
    bare = [
        where(file, node)
        for file in PRODUCT
        for node in calls(file)
        if (ast.unparse(node.func).startswith("self._stub.") or ast.unparse(node.func) == "method")
        and not limited(node)
    ]
    assert bare == []
    sent = [file.name for file in PRODUCT for node in calls(file) if ast.unparse(node.func) == "method"]
    assert sent == ["calls.py"]


@pytest.mark.parametrize(
    "method",
    ["list_topics", "describe_topics", "describe_configs", "describe_cluster", "list_offsets", "committed",
     "get_watermark_offsets", "bootstrap_async", "wait_for"],
)  # fmt: skip
def test_every_question_to_a_broker_has_a_deadline(method: str) -> None:
    """By name; `wait_for` of kafka-python's manager takes its limit as the second argument."""
    made = [
        (where(file, node), limited(node) or (method in ("bootstrap_async", "wait_for") and bool(node.args)))
        for file in PRODUCT
        if "confluent_kafka" in (text := file.read_text(encoding="utf-8")) or "kafka.net" in text
        for node in calls(file)
        if isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and ast.unparse(node.func.value) not in ("self._view", "view", "self", "lib")
    ]
    assert made
    assert [text for text, has_limit in made if not has_limit] == []


@pytest.mark.parametrize(
    "method",
    ["consume", "flush", "init_transactions", "send_offset", "abort_transaction", "poll"],
)
def test_every_call_of_a_reader_or_a_producer_has_a_limit(method: str) -> None:
    """Without a limit they wait for as long as the client chooses."""
    made = [
        (where(file, node), len(node.args))
        for file in PRODUCT
        if "confluent_kafka" in file.read_text(encoding="utf-8")
        for node in calls(file)
        if isinstance(node.func, ast.Attribute)
        and node.func.attr == method
        and ast.unparse(node.func.value).split(".")[-1] != "delivery"
    ]
    assert made
    before = {"consume": 1, "send_offset": 1}.get(method, 0)
    assert [text for text, count in made if count <= before] == []


@pytest.mark.parametrize("client", ["Consumer", "new_producer", "AdminClient"])
def test_every_kafka_client_is_made_with_our_limits(client: str) -> None:
    made = [(file, node) for file in PRODUCT for node in calls(file) if ast.unparse(node.func) == client]
    assert made
    for file, node in made:
        made_of = ast.unparse(node.args[0])
        settings = made_of == "config" or made_of.startswith("self.settings(")
        assert "client_config(" in made_of or settings, where(file, node)
        assert "client_config(" in file.read_text(encoding="utf-8"), where(file, node)


def test_every_wait_for_a_future_has_a_limit() -> None:
    """Exempt: `asyncio` tasks, which are done, and a thread whose own calls have limits."""
    made = [
        (where(file, node), bool(node.args) or limited(node))
        for file in PRODUCT
        for node in calls(file)
        if isinstance(node.func, ast.Attribute)
        and node.func.attr == "result"
        and ast.unparse(node.func.value) not in ("task", "making", "self._pending")
    ]
    assert made
    assert [text for text, has_limit in made if not has_limit] == []


def test_a_silent_peer_is_noticed_in_time_on_every_link() -> None:
    keep_alive = KeepAlive()
    assert (keep_alive.time_ms + keep_alive.timeout_ms) / 1000 < NOTICED_S
    assert CALL_TIMEOUT_S < NOTICED_S
    assert REQUEST_TIMEOUT_MS / 1000 < NOTICED_S
    assert SILENCE_MS / 1000 < NOTICED_S
    assert int(CLIENT_LIMITS["socket.connection.setup.timeout.ms"]) / 1000 < NOTICED_S


@pytest.mark.parametrize(("transaction_ms", "silence_ms"), [(900_000, SILENCE_MS), (2_000, 2_000)])
def test_a_producer_notices_a_silent_broker_before_its_transaction_times_out(
    monkeypatch: pytest.MonkeyPatch, transaction_ms: int, silence_ms: int
) -> None:
    made: list[dict[str, object]] = []

    def producer(config: dict[str, object], **_: object) -> object:
        made.append(config)
        raise RuntimeError("seen enough")

    monkeypatch.setattr("onceward.sinks.kafka.executor.producers.new_producer", producer)
    cluster = KafkaCluster("localhost:1")
    key = PoolKey(job="j", sink="s", generation=1, cluster=cluster, transaction_timeout_ms=transaction_ms, topics=())
    with pytest.raises(RuntimeError, match="seen enough"):
        ProducerPool(key).take({})
    assert made[0]["socket.timeout.ms"] == silence_ms


def test_only_one_module_implements_backoff() -> None:
    """`random` belongs to `Backoff`, to Flink's restart delay, and to the choice of a free port."""
    users = {
        str(file.relative_to(ROOT))
        for file in PRODUCT
        for node in nodes(file)
        if isinstance(node, ast.Import) and any(alias.name == "random" for alias in node.names)
    }
    assert users == {"common/backoff.py", "driver/restarts.py"}
