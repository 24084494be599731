"""Make a store that tests keep: ``python -m tests.unit.former.make_store FILE``, in a checkout of the version to keep,
whose commit names the file. Packages may have other names there: at f1b3ae45 `client` and `protocol` were in
`coordinator`.

A coordinator in its own process, and drivers that acknowledge the documents of Kafka sources and sinks. The job
``orders`` has settled checkpoints, an aborted one, a savepoint, a loss on record, two generations, and a newest
checkpoint that is completed and not settled. The job ``bills`` has halted because slots are lost.
"""

import queue
import sqlite3
import sys
import tempfile
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

from onceward.client.operators import OperatorClient
from onceward.client.session import CoordinatorClient, connect
from onceward.protocol import answers
from onceward.protocol.events import CloseReason
from onceward.protocol.requests import RequestState
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
    CheckpointKind,
    JobName,
    OnLost,
    Outcome,
    Participant,
    ParticipantName,
    RequestId,
    Role,
    Settlement,
    Snapshot,
)
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.transactions import Transaction
from onceward.sources.kafka.positions import Cursor, KafkaPositions, TopicPosition
from tests.support.scripted import CoordinatorProcess

__all__ = ["SETTINGS", "SINK", "SOURCE", "Driver"]

SOURCE = Participant(name=ParticipantName("source"), role=Role.SOURCE, kind="kafka")
SINK = Participant(name=ParticipantName("sink"), role=Role.SINK, kind="kafka")
SETTINGS = CheckpointSettings(
    interval="20ms", tolerable_failed_checkpoints=5, lease="2s", stream_grace="100ms", orphan_grace="1h"
)
_CLUSTER, _SLOTS = "GfmETy5mSnmfI9l9xbiJNg", 2

_I = TypeVar("_I", bound=answers.Instruction)


class Driver:
    """A driver whose checkpoints each read ten records of two partitions and write two transactions."""

    def __init__(self, client: CoordinatorClient, job: str, on_lost: OnLost) -> None:
        self.job = job
        self._arriving: queue.Queue[answers.Instruction] = queue.Queue()
        self._waiting: list[answers.Instruction] = []
        self._last = NO_CHECKPOINT
        sink = replace(SINK, on_lost=on_lost)
        self.session = client.open_job(JobName(job), (SOURCE, sink), SETTINGS, None, driver=uuid.uuid4().hex)
        self.session.start_watch(self._arriving.put)

    def wait(self, kind: type[_I]) -> _I:
        """The next instruction of this kind."""
        while (found := next((one for one in self._waiting if isinstance(one, kind)), None)) is None:
            self._waiting.append(self._arriving.get(timeout=60))
        self._waiting.remove(found)
        return found

    def acknowledge(self) -> CheckpointId:
        """Acknowledge the checkpoint that is triggered next. The first one has no output."""
        trigger = self.wait(answers.Trigger)
        while trigger.checkpoint <= self._last:  # a person waits for one that is acknowledged
            trigger = self.wait(answers.Trigger)
        self._last = trigger.checkpoint
        number = int(trigger.checkpoint)
        sink = Snapshot() if trigger.base == 0 else self._written(number)
        snapshots = {SOURCE.name: self._read(number), SINK.name: sink}
        for answer in self.session.acknowledge(trigger.checkpoint, trigger.base, snapshots):
            assert answer.verdict is answers.Verdict.ACCEPTED, answer
        return trigger.checkpoint

    def settle(self, outcome: Outcome = Outcome.COMMITTED) -> answers.Complete:
        """Report the newest completed checkpoint: slot 0 as committed, slot 1 as said."""
        complete = self.wait(answers.Complete)
        found = [Outcome.COMMITTED, outcome]
        settlements = [
            Settlement(slot=slot, outcome=one, evidence=f"slot {slot} is {one.value}") for slot, one in enumerate(found)
        ]
        answer = self.session.settle(complete.checkpoint, SINK.name, settlements, amendment=complete.amendment)
        assert answer.verdict is answers.Verdict.ACCEPTED, answer
        return complete

    def _read(self, checkpoint: int) -> Snapshot:
        cursors = {number: Cursor(next=10 * checkpoint + number, end=None, epoch=4) for number in range(_SLOTS)}
        topics = {"in": TopicPosition(id="Bm0tV2kQRTu1mYzO9xQ3aw", partitions=cursors)}
        positions = KafkaPositions(cluster="main", cluster_id=_CLUSTER, topics=topics)
        return Snapshot(positions=positions.to_document(), records=20)

    def _written(self, checkpoint: int) -> Snapshot:
        made = tuple(
            KafkaCommittable(
                slot=slot,
                checkpoint=checkpoint,
                cluster_name="main",
                cluster_id=_CLUSTER,
                transaction=Transaction(
                    id=f"{self.job}.sink.{self.session.generation}.6c8d3ad81e3f.{slot}",
                    producer_id=1000 + slot,
                    epoch=checkpoint,
                    version=5,
                ),
                token=f"{checkpoint}-{slot}",
                topics={"out": TopicRecords(records=10, partitions=(slot,), id="oC2VbG1hS0WvN1yQn3w3Hg", count=2)},
                records=10,
                bytes=1000,
                inputs=[{"topic": "in", "partition": slot, "start": 10 * checkpoint - 10, "end": 10 * checkpoint}],
                pre_committed=datetime.now(UTC),
                timeout=timedelta(minutes=15),
                began=datetime.now(UTC),
                replayable=True,
            ).to_committable()
            for slot in range(_SLOTS)
        )
        return Snapshot(committables=made, records=20, bytes=2000)


def _orders(client: CoordinatorClient, operators: OperatorClient) -> None:
    first = Driver(client, "orders", OnLost.SKIP)
    first.acknowledge()
    first.acknowledge()
    first.settle()
    declined = first.wait(answers.Trigger).checkpoint
    first.session.decline(declined, SINK.name, "ExecutorLostFailure (executor 1 exited)")
    first.acknowledge()
    first.settle(Outcome.LOST)
    first.session.close(CloseReason.FAILED, "it ran out of memory")
    second = Driver(client, "orders", OnLost.SKIP)
    wish = RequestId(uuid.uuid4().hex)
    operators.request_checkpoint(JobName("orders"), CheckpointKind.SAVEPOINT, name="before", request=wish)
    while operators.request(JobName("orders"), wish).state is not RequestState.COMPLETED:
        second.acknowledge()
        second.settle()
    second.acknowledge()
    second.wait(answers.Complete)
    second.session.let_go()


def _bills(client: CoordinatorClient) -> None:
    driver = Driver(client, "bills", OnLost.HALT)
    driver.acknowledge()
    driver.acknowledge()
    driver.settle(Outcome.LOST)
    driver.wait(answers.Halt)
    driver.session.close(CloseReason.HALTED, "slot 1 is lost")


def main(file: Path) -> None:
    with tempfile.TemporaryDirectory() as made:
        coordinator = CoordinatorProcess(Path(made)).wait_ready()
        with connect(coordinator.address) as client, OperatorClient(coordinator.address) as operators:
            _orders(client, operators)
            _bills(client)
        coordinator.terminate()
        assert coordinator.wait() == 0, coordinator.tail()
        with sqlite3.connect(Path(made) / "store.db") as store:
            store.execute("VACUUM INTO ?", (str(file),))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
