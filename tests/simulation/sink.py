"""The real sink on modelled brokers, with a check that its pre-commit holds."""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from onceward import KafkaCluster, KafkaSink
from onceward.connectors.interfaces import Finding, JobContext, Origin
from onceward.connectors.tasks import Vote
from onceward.protocol.values import CheckpointId, Committable, Generation, OnLost
from onceward.sinks.kafka.control.committables import KafkaCommittable
from tests.simulation.coordinator import wall_clock
from tests.simulation.driver import virtual_clock
from tests.support.kafka_model.control import SimControl

if TYPE_CHECKING:
    from tests.simulation.brokers import Brokers

__all__ = ["DESCRIBED", "OUTPUT", "SimulatedSink"]

OUTPUT = "out"
DESCRIBED = KafkaCluster("simulated:9092", name="main")


class SimulatedSink(KafkaSink):
    """The real sink on modelled brokers."""

    def __init__(
        self, brokers: "Brokers", control: SimControl, *, timeout: timedelta, skew: timedelta, on_lost: OnLost
    ) -> None:
        super().__init__(DESCRIBED, topic=OUTPUT, transaction_timeout=timeout, on_lost=on_lost.value)
        self.generation = 0
        self._brokers = brokers
        self._given_control = control
        self._timeout = timeout
        self._clock = virtual_clock(lambda: wall_clock(brokers.clock) + skew)

    def open(self, context: JobContext) -> None:
        self._context = context
        self._cluster_id = self._given_control.cluster_id()
        self._control = self._given_control

    def preflight(self) -> Sequence[Finding]:
        return ()

    def begin_generation(self, generation: Generation) -> None:
        super().begin_generation(generation)
        self.generation = generation

    def pre_commit(
        self,
        checkpoint: CheckpointId,
        votes: Sequence[Vote],
        origins: Sequence[Origin],
        *,
        unsettled: Collection[Committable],
    ) -> tuple[Committable, ...]:
        """Run the real pre-commit, and check what it promises."""
        voted = [str(vote.body["id"]) for vote in votes if vote.body]
        held = [KafkaCommittable.of(committable).transaction.id for committable in unsettled]
        check = self._brokers.pre_commit_check(voted, held, self._staying or ())
        committables = super().pre_commit(checkpoint, votes, origins, unsettled=unsettled)
        check()
        return committables
