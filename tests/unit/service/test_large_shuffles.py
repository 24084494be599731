"""In a shuffle every slot depends on every range: slots times ranges must not be sent, kept or processed."""

from datetime import UTC, datetime, timedelta

from onceward.client.session import CoordinatorClient
from onceward.coordinator.store.codec import snapshots_from_text, snapshots_to_text
from onceward.protocol.answers import Instruction, Trigger, Verdict
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import CheckpointId, JobName, Snapshot
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.transactions import Transaction
from onceward.wire.documents import require_few_values
from onceward.wire.limits import MAX_REQUEST_BYTES
from onceward.wire.values import snapshot_from_wire, snapshot_to_wire
from tests.support.scripted import SINK, SOURCE, positions
from tests.support.waiting import wait_until

RANGES = [
    {"topic": "orders", "partition": number, "start": 1_000_000 + number, "end": 1_005_000 + number}
    for number in range(1_000)
]
MiB = 1024 * 1024
JOB, ZERO, ONE = JobName("orders"), CheckpointId(0), CheckpointId(1)


def shuffled(slots: int) -> Snapshot:
    committables = tuple(
        KafkaCommittable(
            slot=slot,
            checkpoint=1,
            cluster_name="main",
            cluster_id="MkU3OEVBNTcwNTJENDM2Qk",
            transaction=Transaction(id=f"orders.sink.1.0011223344.{slot}", producer_id=slot, epoch=7, version=5),
            token=f"{slot:032x}",
            topics={"out": TopicRecords(records=25_000, partitions=(0, 1, 2, 3))},
            records=25_000,
            bytes=2_500_000,
            inputs=RANGES,
            pre_committed=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            timeout=timedelta(minutes=15),
        ).to_committable()
        for slot in range(slots)
    )
    return Snapshot(committables=committables, records=25_000 * slots, bytes=2_500_000 * slots)


def test_the_ranges_of_a_shuffle_are_sent_once_and_stored_once() -> None:
    snapshot = shuffled(200)
    message = snapshot_to_wire(snapshot)
    assert message.ByteSize() < MiB / 4
    decoded = snapshot_from_wire(message)
    assert decoded == snapshot
    text = snapshots_to_text({SINK.name: decoded})
    assert len(text) < MiB / 4
    stored = snapshots_from_text(text)[SINK.name]
    assert stored == snapshot
    assert snapshot_to_wire(stored).ByteSize() < MiB / 4, "a grant"
    assert all(KafkaCommittable.of(one).inputs == RANGES for one in stored.committables)


def test_a_shuffle_of_a_thousand_slots_and_ranges_is_acknowledged_and_given_to_the_next_driver(
    client: CoordinatorClient,
) -> None:
    settings, snapshot = CheckpointSettings(interval="1h"), shuffled(1_000)
    session = client.open_job(JOB, (SOURCE, SINK), settings, None, driver="d1")
    wanted: list[Instruction] = []
    session.start_watch(wanted.append)
    wait_until(lambda: Trigger(checkpoint=ONE, base=ZERO) in wanted, "the first checkpoint is triggered")
    answers = session.acknowledge(ONE, ZERO, {SOURCE.name: positions(1), SINK.name: snapshot})
    assert {answer.verdict for answer in answers} <= {Verdict.ACCEPTED, Verdict.DUPLICATE}
    again = client.open_job(JOB, (SOURCE, SINK), settings, None, driver="d2", takeover=True)
    assert again.grant.completed is not None
    assert again.grant.completed.snapshots[SINK.name] == snapshot


def test_the_longest_ordinary_request_has_fewer_values_than_are_refused() -> None:
    shortest = '{"topic":"o","partition":1,"start":1,"end":2},'
    require_few_values(["[" + shortest * (MAX_REQUEST_BYTES // len(shortest)) + "]"])
