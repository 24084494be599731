"""A halted job (slot 0 of checkpoint 2 is committed, slot 1 lost, slot 2 in doubt) and fake brokers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from onceward.client.session import connect
from onceward.common.errors import OncewardError
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.service.systems import Systems
from onceward.operate.brokers import Brokers
from onceward.protocol.committing import OpenTransaction, Place, PreCommitted, System, TransactionHandle
from onceward.protocol.events import CloseReason
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import Author, CheckpointId, Claim, Committable, JobName, Outcome, Settlement
from tests.support.scripted import SINK, SOURCE, positions, slots
from tests.support.waiting import wait_until

__all__ = ["ORDERS", "FakeBrokers", "halted", "open_transaction"]

ORDERS = JobName("orders")
SETTINGS = CheckpointSettings(interval=0, tolerable_failed_checkpoints=1000)
FOUND = (Outcome.COMMITTED, Outcome.LOST, Outcome.IN_DOUBT)


def halted(directory: Path) -> None:
    """Leave a halted job in the directory, which no process uses afterwards."""
    with EmbeddedCoordinator(directory) as coordinator, connect(coordinator.address) as client:
        session = client.open_job(ORDERS, (SOURCE, SINK), SETTINGS, None, driver="d")
        reported: list[object] = []
        session.start_watch(reported.append)
        for checkpoint, count in ((1, 0), (2, 3)):
            wait_until(partial(_named, reported, checkpoint), f"checkpoint {checkpoint} is triggered")
            snapshots = {SOURCE.name: positions(10 * checkpoint), SINK.name: slots(checkpoint, count)}
            session.acknowledge(CheckpointId(checkpoint), CheckpointId(checkpoint - 1), snapshots)
        settlements = [
            Settlement(slot=slot, outcome=outcome, evidence=f"slot {slot} was {outcome.value}")
            for slot, outcome in enumerate(FOUND)
        ]
        session.settle(CheckpointId(2), SINK.name, settlements)
        session.close(CloseReason.FAILED, "it is halted")


def _named(reported: Sequence[object], checkpoint: int) -> bool:
    return any(getattr(one, "checkpoint", 0) == checkpoint for one in reported)


def open_transaction(slot: int, *, generation: int = 1) -> OpenTransaction:
    return OpenTransaction(
        handle=TransactionHandle(f"orders.sink.{generation}.abcd1234.{slot}", f"7/{slot}"),
        cluster="main",
        participant="sink",
        generation=generation,
        state="Ongoing",
        age=timedelta(seconds=40),
        left=timedelta(seconds=20),
        details={"worker": "abcd1234", "partitions": "out-0"},
    )


class FakeBrokers(System):
    """Answer as the test sets, and record the requested changes."""

    def __init__(self, outcomes: Mapping[int, Outcome], opened: Sequence[OpenTransaction] = ()) -> None:
        self.outcomes = dict(outcomes)
        self.opened = opened
        self.away: OncewardError | None = None
        self.abort_fails: OncewardError | None = None
        self.aborted: list[int] = []
        self.asked_to_commit: list[int] = []

    def reached(self) -> Brokers:
        named = {"main": NamedSystem(kind="test", configuration="a cluster")}
        return Brokers(Systems({"test": lambda _configuration, **_: self}, named))

    def id(self) -> str:
        return "a cluster"

    def place(self, committable: Committable) -> Place:
        return Place(id="a cluster")

    def commit(
        self,
        author: Author,
        committables: Sequence[Committable],
        *,
        give_up: Callable[[], bool] = lambda: False,
        known: PreCommitted | None = None,
    ) -> Sequence[Settlement]:
        self.asked_to_commit += [one.slot for one in committables]
        return [self.outcome(one) for one in committables]

    def abort(self, author: Author, committables: Sequence[Committable]) -> None:
        self._require()
        if self.abort_fails is not None:
            raise self.abort_fails
        self.aborted += [one.slot for one in committables]

    def outcome(self, committable: Committable) -> Settlement:
        self._require()
        outcome = self.outcomes[committable.slot]
        return Settlement(slot=committable.slot, outcome=outcome, evidence=f"the brokers say {outcome.value}")

    def describe(self, committable: Committable) -> str:
        return f"slot {committable.slot}: 5 records from orders-0"

    def handle(self, committable: Committable) -> TransactionHandle:
        return open_transaction(committable.slot).handle

    def transactions(self, job: JobName) -> Sequence[OpenTransaction]:
        self._require()
        return [
            replace(one, handle=one.handle._replace(id=one.handle.id.replace("orders", job))) for one in self.opened
        ]

    def leftovers(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        raise NotImplementedError

    def sweep(self, job: JobName, *, keep: Collection[Committable] = (), **_: Any) -> Sequence[str]:
        raise NotImplementedError

    def read_claim(self, *_: Any, **__: Any) -> Claim | None:
        raise NotImplementedError

    def take_claim(self, *_: Any) -> None:
        raise NotImplementedError

    def renew_claim(self, *_: Any, **__: Any) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def _require(self) -> None:
        if self.away is not None:
            raise self.away
