"""Whether a source may continue from positions, or read ranges again, on a cluster that has changed."""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from onceward import KafkaCluster
from onceward.common.errors import CheckpointFailedError, HaltedError
from onceward.connectors.interfaces import Finding, ReplayRefusedError, Severity
from onceward.protocol.values import JsonObject
from onceward.sources.kafka.control.metadata import TopicState
from onceward.sources.kafka.driver import checks
from onceward.sources.kafka.driver import discovery as discovering
from onceward.sources.kafka.driver.checks import (
    confirm_topics,
    durability_findings,
    owned_setting_findings,
    refuse_gone,
    refuse_other_cluster,
    refuse_other_topics,
    refuse_outside,
    topic_findings,
)
from onceward.sources.kafka.driver.discovery import Discovery
from onceward.sources.kafka.driver.replays import refuse_incomplete
from onceward.sources.kafka.epochs import Difference
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition, TopicPosition
from tests.support.manual_time import ManualTime

ORDERS = [Partition("orders", number) for number in range(3)]
SAFE = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false", "cleanup.policy": "delete"}


@dataclass
class Cluster:
    """What a cluster reports about itself. For `unknown_for` questions it reports no topic."""

    found: dict[str, TopicState] = field(default_factory=dict)
    settings: dict[str, dict[str, str] | None] = field(default_factory=dict)
    starts: dict[Partition, int] = field(default_factory=dict)
    ends: dict[Partition, int] = field(default_factory=dict)
    unknown_for: int = 0
    """Number of questions for topics that are answered with no topic."""
    asked: list[frozenset[str]] = field(default_factory=list)
    differs: list[Difference] = field(default_factory=list)

    def topics(self, names: Collection[str]) -> dict[str, TopicState]:
        self.asked.append(frozenset(names))
        if self.unknown_for:
            self.unknown_for -= 1
            return {}
        return {name: self.found[name] for name in names if name in self.found}

    def topic_settings(self, names: Collection[str], keys: Collection[str]) -> dict[str, dict[str, str] | None]:
        known = {name: self.settings.get(name, SAFE) for name in names}
        return {
            name: None if each is None else {key: each[key] for key in keys if key in each}
            for name, each in known.items()
        }

    def log_starts(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        found = {partition: self.starts[partition] for partition in partitions if partition in self.starts}
        if not found and list(partitions):
            raise CheckpointFailedError("no leader")
        return found

    def high_watermarks(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {partition: self.ends[partition] for partition in partitions}

    def differences(self, cursors: Mapping[Partition, Cursor]) -> list[Difference]:
        return [one for one in self.differs if one.partition in cursors]


def topic(count: int = 3, **changed: Any) -> TopicState:
    state = TopicState(
        id="t1", partitions=tuple(range(count)), operations=frozenset({"READ", "DESCRIBE"}), replication=3
    )
    return replace(state, **changed)


@pytest.fixture
def cluster() -> Any:
    return Cluster({"orders": topic()}, starts=dict.fromkeys(ORDERS, 10), ends=dict.fromkeys(ORDERS, 90))


def positions(*cursors: Cursor, topic_id: str = "t1", name: str = "orders") -> KafkaPositions:
    partitions = dict(enumerate(cursors or [Cursor(next=40)] * 3))
    topics = {name: TopicPosition(id=topic_id, partitions=partitions)}
    return KafkaPositions(cluster="main", cluster_id="c", topics=topics)


@pytest.fixture(autouse=True)
def passing(monkeypatch: pytest.MonkeyPatch) -> ManualTime:
    passing = ManualTime()
    for module in (checks, discovering):
        monkeypatch.setattr(module, "time", passing)
    return passing


# -- continuing


def test_positions_of_another_cluster_are_refused() -> None:
    here = KafkaCluster("localhost:1")
    refuse_other_cluster(positions(), here, "c")
    with pytest.raises(HaltedError, match=r"of Kafka cluster c \('main'\), but localhost:1 leads to cluster d"):
        refuse_other_cluster(positions(), here, "d")


def test_a_topic_that_brokers_learn_of_late_is_not_taken_for_missing(cluster: Any, passing: ManualTime) -> None:
    cluster.unknown_for = 2
    assert confirm_topics(cluster.topics, ["orders"]) == cluster.found
    assert len(passing.slept) == 2
    assert confirm_topics(cluster.topics, ["orders", "bills"]) == cluster.found
    assert len(passing.slept) == 4, "a missing one is asked for three times in all"
    assert confirm_topics(cluster.topics, []) == {}
    assert len(passing.slept) == 4


def test_topics_that_grew_or_are_new_are_fine(cluster: Any) -> None:
    refuse_other_topics(positions(), ["orders", "bills"], {"orders": topic(4), "bills": topic(id="t9")})
    refuse_other_topics(positions(), ["orders"], cluster.found)
    refuse_other_topics(positions(topic_id="former"), [], cluster.found)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({}, r"topic orders \(id t1\) does not exist any more"),
        ({"orders": topic(id="t2")}, "topic orders was deleted and recreated: its id was t1 and is t2"),
        ({"orders": topic(2)}, r"topic orders \(id t1\) has lost its partitions \[2\]"),
    ],
)
def test_a_topic_that_is_another_one_is_refused(now: dict[str, TopicState], why: str) -> None:
    with pytest.raises(HaltedError, match=why):
        refuse_other_topics(positions(), ["orders"], now)


def test_every_topic_that_is_another_one_is_named() -> None:
    both = replace(positions(), topics={**positions().topics, **positions(name="bills").topics})
    with pytest.raises(HaltedError, match=r"topic bills .* not exist any more; topic orders .* not exist any more"):
        refuse_other_topics(both, ["orders", "bills", "added"], {})


@pytest.mark.parametrize(("at", "held"), [(9, False), (10, True), (90, True), (91, False)])
def test_a_position_must_be_in_its_log_or_at_its_end(cluster: Any, at: int, held: bool) -> None:
    here = positions(Cursor(next=50), Cursor(next=at))
    if held:
        refuse_outside(here, ORDERS, cluster.starts, cluster.ends)
        return
    with pytest.raises(HaltedError, match="orders-1"):
        refuse_outside(here, ORDERS, cluster.starts, cluster.ends)


def test_only_unread_input_needs_its_log(cluster: Any) -> None:
    done = positions(Cursor(next=5, end=5), Cursor(next=5), Cursor(next=5))
    del cluster.starts[ORDERS[2]]
    refuse_outside(done, [ORDERS[0], ORDERS[2]], cluster.starts, cluster.ends)
    cluster.starts[ORDERS[2]] = 10
    del cluster.ends[ORDERS[2]]
    refuse_outside(done, [ORDERS[0], ORDERS[2]], cluster.starts, cluster.ends)
    bounded = positions(Cursor(next=5, end=7), Cursor(next=5))
    with pytest.raises(HaltedError) as halted:
        refuse_outside(bounded, ORDERS, cluster.starts, cluster.ends)
    first, second = str(halted.value).split("\n")
    for number, line in enumerate((first, second)):
        assert f"orders-{number} is to be read from offset 5, but its log starts at 10 now" in line
    refuse_gone([])


# -- the preflight


def messages(findings: Iterable[Finding], severity: Severity) -> list[str]:
    made = list(findings)
    assert all(finding.severity is severity for finding in made)
    return [f"{finding.subject}: {finding.message}" for finding in made]


def test_settings_that_break_the_promise_are_all_named_at_once() -> None:
    broken = KafkaCluster(
        "localhost:1", config={"isolation.level": "read_uncommitted", "group.id": "mine", "client.id": "x"}
    )
    (said,) = messages(owned_setting_findings(broken), Severity.ERROR)
    assert "isolation.level=read_uncommitted (must be read_committed), group.id=mine (it is set by the source" in said
    right = KafkaCluster("localhost:1", config={"isolation.level": "READ_COMMITTED", "client.id": "x"})
    assert messages(owned_setting_findings(right), Severity.ERROR) == []


def test_topics_that_are_missing_or_may_not_be_read_are_errors() -> None:
    found = {"a": topic(operations=frozenset({"DESCRIBE"})), "b": topic(operations=frozenset()), "c": topic()}
    said = messages(topic_findings(KafkaCluster("localhost:1"), ["d", "a", "b", "c", "e"], found), Severity.ERROR)
    assert [each.split(":")[0] for each in said] == ["source topics d, e", "source topics a"]
    assert "2 of 5 topics do not exist" in said[0]
    assert messages(topic_findings(KafkaCluster("localhost:1"), ["c"], {"c": topic()}), Severity.ERROR) == []


@pytest.mark.parametrize(
    ("state", "settings", "said"),
    [
        (topic(), SAFE, []),
        (topic(replication=2), SAFE, ["has replication factor 2, below 3"]),
        (topic(), None, ["its settings may not be read"]),
        (topic(), {**SAFE, "min.insync.replicas": "1"}, ["min.insync.replicas is 1, below 2"]),
        (topic(), {}, ["min.insync.replicas is None, below 2"]),
        (topic(), {**SAFE, "unclean.leader.election.enable": "true"}, ["unclean leader election is allowed"]),
        (topic(replication=1), None, ["has replication factor 1, below 3", "its settings may not be read"]),
    ],
)
def test_settings_that_can_lose_confirmed_records_give_a_warning(
    cluster: Any, state: TopicState, settings: dict[str, str] | None, said: list[str]
) -> None:
    cluster.settings = {"orders": settings}
    found = messages(durability_findings({"orders": state}, cluster), Severity.WARNING)
    assert len(found) == len(said)
    assert all(f"source topic orders: {part}" in each for part, each in zip(said, found, strict=True))


def test_a_topic_with_unreadable_settings_hides_no_other(cluster: Any) -> None:
    cluster.settings = {"bills": None, "orders": {**SAFE, "min.insync.replicas": "1"}}
    found = messages(durability_findings({"orders": topic(), "bills": topic()}, cluster), Severity.WARNING)
    assert [each.split(":")[0] for each in found] == ["source topic bills", "source topic orders"]


# -- partitions found later


def discovery(cluster: Any) -> Discovery:
    return Discovery(cluster, timedelta(seconds=30))


def look(found: Discovery, base: KafkaPositions, *names: str) -> dict[Partition, int]:
    """Return the positions that are new after a look, without those in ``base``."""
    found.look_if_due(base, subscribed=["orders"], names=lambda: names, reads=lambda _: True)
    return {partition: cursor.next for partition, cursor in found.added_to(base) if partition not in base}


def test_new_partitions_and_topics_start_where_their_logs_begin(cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    base, new = positions(Cursor(next=40)), Partition("bills", 0)
    cluster.found["bills"] = topic(1, id="t9")
    cluster.starts[new] = 0
    found = discovery(cluster)
    with caplog.at_level(logging.INFO):
        assert look(found, base, "bills") == {ORDERS[1]: 10, ORDERS[2]: 10, new: 0}
    assert {record.levelname for record in caplog.records if "orders" in record.getMessage()} == {"WARNING"}
    assert {record.levelname for record in caplog.records if "bills" in record.getMessage()} == {"INFO"}
    assert not any("orders-0" in record.getMessage() for record in caplog.records), "it was known before"
    after = found.added_to(base)
    assert {name: one.id for name, one in after.topics.items()} == {"orders": "t1", "bills": "t9"}
    assert dict(after)[ORDERS[0]] == Cursor(next=40)
    assert found.added_to(after) == after
    moved = after.moved({new: Cursor(next=9)}, bound=None)
    assert found.added_to(moved) == moved, "a position that was read on from is put back"


def test_discovery_runs_each_interval_and_at_once_after_a_missing_leader(cluster: Any, passing: ManualTime) -> None:
    base = positions(Cursor(next=40), Cursor(next=40))
    found = discovery(cluster)
    del cluster.starts[ORDERS[2]]
    assert look(found, base) == {}
    cluster.starts[ORDERS[2]] = 3
    assert look(found, base) == {ORDERS[2]: 3}
    looks = len(cluster.asked)
    passing.now = 29.9
    look(found, base)
    assert len(cluster.asked) == looks
    passing.now = 30
    look(found, base)
    assert len(cluster.asked) == looks + 1
    found.looked()
    look(found, base)
    assert len(cluster.asked) == looks + 1


def test_discovery_notices_a_deleted_topic(cluster: Any) -> None:
    cluster.found["orders"] = topic(id="t2")
    with pytest.raises(HaltedError, match="recreated"):
        look(discovery(cluster), positions())


# -- reading ranges again


def ranges(*bounds: tuple[int, int, int]) -> list[JsonObject]:
    return [{"topic": "orders", "partition": number, "start": start, "end": end} for number, start, end in bounds]


def replay(cluster: Any, *bounds: tuple[int, int, int], at: KafkaPositions | None = None) -> None:
    refuse_incomplete(cluster, cluster, "c", at or positions(), ranges(*(bounds or [(1, 10, 90)])))


def test_ranges_that_are_all_there_may_be_read_again(cluster: Any) -> None:
    replay(cluster)
    replay(cluster, (1, 10, 20), (1, 20, 90), (2, 90, 90))
    replay(cluster, at=replace(positions(), topics={**positions().topics, **positions(name="bills").topics}))


@pytest.mark.parametrize("bounds", [(1, 9, 20), (1, 20, 91), (1, 30, 20)], ids=repr)
def test_a_range_that_the_log_does_not_hold_is_not_read_again(cluster: Any, bounds: tuple[int, int, int]) -> None:
    with pytest.raises(ReplayRefusedError, match=rf"orders-1 does not hold the offsets \[{bounds[1]}, {bounds[2]}\)"):
        replay(cluster, (0, 10, 20), bounds)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({}, "orders-1, which the records came from, does not exist"),
        ({"orders": topic(1)}, "orders-1, which the records came from, does not exist"),
        ({"orders": topic(id="t2")}, "topic orders was recreated: its id was t1 and is t2"),
    ],
)
def test_a_topic_that_is_another_one_is_not_read_again(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, now: dict[str, TopicState], why: str
) -> None:
    monkeypatch.setattr("onceward.sources.kafka.driver.checks._PAUSE_SECONDS", 0)
    cluster.found = now
    with pytest.raises(ReplayRefusedError, match=why):
        replay(cluster)


def test_ranges_of_another_cluster_or_an_unknown_topic_are_not_read_again(cluster: Any) -> None:
    with pytest.raises(ReplayRefusedError, match="read from cluster d, the source leads to c now"):
        replay(cluster, at=replace(positions(), cluster_id="d"))
    with pytest.raises(ReplayRefusedError, match="its id was unknown and is t1"):
        replay(cluster, at=positions(name="bills"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"cleanup.policy": "compact"}, "cleanup.policy=compact"),
        ({"cleanup.policy": "compact,delete"}, "cleanup.policy=compact,delete"),
        ({}, "may not be read: grant DescribeConfigs"),
        (None, "may not be read: grant DescribeConfigs"),
    ],
)
def test_a_topic_that_may_be_compacted_is_not_read_again(
    cluster: Any, settings: dict[str, str] | None, why: str
) -> None:
    cluster.settings = {"orders": settings}
    with pytest.raises(ReplayRefusedError, match=why):
        replay(cluster)


@pytest.mark.parametrize(
    ("offset", "exact", "refused"), [(90, True, False), (89, True, True), (90, False, True), (20, True, True)]
)
def test_a_log_that_was_replaced_within_a_range_is_not_read_again(
    cluster: Any, offset: int, exact: bool, refused: bool
) -> None:
    """A replacement behind all ranges does not affect them."""
    cluster.differs = [made_again(offset, exact=exact)]
    if not refused:
        replay(cluster, (1, 10, 20), (1, 20, 90), (2, 10, 90))
        return
    with pytest.raises(ReplayRefusedError, match="orders-1"):
        replay(cluster, (1, 20, 90), (1, 10, 20))


def made_again(offset: int, *, exact: bool) -> Difference:
    return Difference(partition=ORDERS[1], position=90, epoch=3, offset=offset, exact=exact)
