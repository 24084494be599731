"""The real sink on modelled brokers, with a check that its pre-commit holds."""

from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from onceward import KafkaSink
from onceward.connectors.interfaces import Finding, JobContext, Origin
from onceward.connectors.tasks import Vote
from onceward.protocol.committing import PreCommitted
from onceward.protocol.values import CheckpointId, Committable, Generation, JobName, OnLost
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.recent import KafkaPreCommitted
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.driver.session import KafkaSinkSession
from tests.simulation.coordinator import wall_clock
from tests.simulation.driver import virtual_clock
from tests.simulation.systems import ConnectedSink
from tests.support.kafka_model.control import SimControl

if TYPE_CHECKING:
    from tests.simulation.brokers import Brokers, PreCommitCheck

__all__ = ["SimulatedSink", "output_of"]


def output_of(sink: str) -> str:
    """The topic that a sink writes to."""
    return "out" if sink == "sink" else f"out-{sink}"


class SimulatedSink(KafkaSink, ConnectedSink):
    """The real sink on modelled brokers."""

    def __init__(
        self,
        brokers: "Brokers",
        control: SimControl,
        name: str,
        checks: "dict[int, PreCommitCheck]",
        *,
        timeout: timedelta,
        skew: timedelta,
        on_lost: OnLost,
    ) -> None:
        """``checks``: of pre-commits whose leftovers are not ended yet, by all sinks on these brokers."""
        super().__init__(
            brokers.described, topic=output_of(name), transaction_timeout=timeout, on_lost=on_lost.value, name=name
        )
        self.session: SimulatedSession
        self._made = partial(SimulatedSession, self, brokers, control, checks, timeout=timeout, skew=skew)

    @property
    def generation(self) -> int:
        return self.session.generation

    def connect(self, context: JobContext) -> KafkaSinkSession:
        self.session = self._made(context)
        return self.session


class SimulatedSession(KafkaSinkSession):
    def __init__(
        self,
        sink: SimulatedSink,
        brokers: "Brokers",
        control: SimControl,
        checks: "dict[int, PreCommitCheck]",
        context: JobContext,
        *,
        timeout: timedelta,
        skew: timedelta,
    ) -> None:
        clock = virtual_clock(lambda: wall_clock(brokers.clock) + skew)
        super().__init__(sink, context, control, control.cluster_id(), clock=clock)
        self.generation = 0
        self._brokers = brokers
        self._timeout = timeout
        self._checks = checks

    def preflight(self) -> Sequence[Finding]:
        return ()

    def begin_generation(self, generation: Generation) -> None:
        super().begin_generation(generation)
        self.generation = generation

    def system(self) -> KafkaSystem:
        return _CheckedSystem(
            self._checks, self._control, clock=self._clock, generation=lambda: self._generation, topics=self.topics
        )

    def pre_commit(
        self, checkpoint: CheckpointId, votes: Sequence[Vote], origins: Sequence[Origin], *, leftovers: bool
    ) -> KafkaPreCommitted:
        """Run the real pre-commit. What it promises is checked once leftovers are ended."""
        check = self._brokers.pre_commit_check([str(vote.body["id"]) for vote in votes if vote.body])
        made = super().pre_commit(checkpoint, votes, origins, leftovers=leftovers)
        check.voted()
        self._checks[id(made)] = check
        return made


class _CheckedSystem(KafkaSystem):
    def __init__(self, checks: "dict[int, PreCommitCheck]", control: ControlPlane, **given: Any) -> None:
        super().__init__(control, **given)
        self._checks = checks

    def sweep(
        self,
        job: JobName,
        *,
        keep: Collection[Committable] = (),
        staying: Collection[str] = (),
        known: Sequence[PreCommitted] = (),
    ) -> Sequence[str]:
        """Sweep, and check after a pre-commit that nothing else is open."""
        swept = super().sweep(job, keep=keep, staying=staying, known=known)
        for made in known[:1]:  # it listed for all sinks: what began after that is left to the next sweep
            self._checks[id(made)].swept([KafkaCommittable.of(one).transaction.id for one in keep], staying)
        self._checks.clear()
        return swept
