"""One world: all its parts, the faults that it must survive, and its end."""

import math
import random as chance
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import chain
from random import Random
from typing import Any

from onceward.common.errors import FencedError, HaltedError, JobBusyError, OncewardError, RefusedError
from onceward.coordinator.service.systems import Systems
from onceward.coordinator.store.postgres import PAUSE_S
from onceward.driver.restarts import Restart
from onceward.protocol.answers import Answer
from onceward.protocol.committing import System
from onceward.protocol.durable import Durable
from onceward.protocol.events import Event, PermitTakeover
from onceward.protocol.facts import Fact, GenerationGranted, LossRecorded
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus
from onceward.protocol.values import COORDINATOR, CheckpointId, JobName
from tests.simulation.brokers import Brokers
from tests.simulation.checker import Checker, Invariant, Shared
from tests.simulation.coordinator import CoordinatorHost
from tests.simulation.database import Database
from tests.simulation.driver import SimulatedPipeline, Surroundings
from tests.simulation.executors import Executors, WorkerTasks
from tests.simulation.fault_injector import FaultInjector
from tests.simulation.fault_profile import FaultProfile
from tests.simulation.lake import Lake
from tests.simulation.links import break_links
from tests.simulation.network import Link
from tests.simulation.patches import Hooks
from tests.simulation.rpc import Channel
from tests.simulation.scheduler import EPOCH, Process, Scheduler
from tests.simulation.sink import SimulatedSink
from tests.simulation.source import InputTopic, ModelSource
from tests.simulation.streams import break_streams
from tests.simulation.systems import ModelledSystem
from tests.simulation.threads import set_scheduler
from tests.support.kafka_model.producer import SimProducer

__all__ = ["SimulatedWorld"]

JOB = JobName("orders")
_SYSTEMS = {"apart": "other", "table": "table"}
"""Those of second sinks that are not on the first sink's."""
SETTLED_WITHIN = 15.0
"""Seconds after the end of the lease and of the grace time. Connections and the coordinator may have broken, and need
some seconds to notice or to return; a proof takes two looks; failed steps are retried."""


class SimulatedWorld:
    """Build it, `run` it once, then read ``checker`` and ``counts``."""

    def __init__(self, random: Random, faults: FaultProfile, trace: Callable[[float, str, str], None] | None) -> None:
        self.random = random
        self.faults = faults
        self.trace = trace
        self.clock = Scheduler(random)
        self.clock.preemption = faults.preemption
        self.counts: Counter[str] = Counter()
        self.topic = InputTopic(totals=faults.totals, outputs=faults.outputs)
        second = "" if faults.staying and faults.second_sink == "table" else faults.second_sink  # refused at the start
        names = ["sink", "second"] if second else ["sink"]
        on_second, shared = _SYSTEMS.get(second, "main"), Shared(names)
        self.checkers = [
            Checker(self.topic, name, system, shared, outputs=1 if system == "table" else None)
            for name, system in zip(names, ("main", on_second), strict=False)
        ]
        """One for each sink."""
        self.checker = self.checkers[0]
        """The checker of what concerns the whole job."""
        self.store = Database(
            self.clock,
            self._fact,
            lambda term: self.checker.wrote(term, self.store.term),
            pause_s=PAUSE_S if faults.standby else math.inf,
        )
        self.store.failing, self.store.late = faults.store_failures, faults.late_store
        self.wires = Process("network", "world")
        self.rpc = Link(random, faults.rpc)
        self.host = CoordinatorHost(
            self.clock,
            self.store,
            self._coordinator_died,
            self._answered,
            self._known_systems,
            self.note,
            movable=faults.standby,
        )
        on: dict[str, list[Checker]] = {}
        for checker in self.checkers:
            on.setdefault(checker.system, []).append(checker)
        self.brokers = [Brokers(self.clock, faults, on[name], self.note) for name in on if name != "table"]
        self.lakes = [
            Lake(self.clock, faults, on[name], self.note, lambda what: self.injector.step(what))
            for name in on
            if name == "table"
        ]
        self.systems: list[ModelledSystem] = [*self.brokers, *self.lakes]
        self.drivers: list[Process] = []
        self.processes: list[Process] = []
        self._driver_starts = 0
        self.injector = FaultInjector(self)
        self._granted = 0.0
        """When the newest generation was granted."""
        self._missing = False
        """True while all drivers are gone and none is started."""
        self._missing_since = 0.0
        self._promoted = False
        """True once an older copy has replaced the store."""
        self._claims_copied = 0
        """Claims that had been written when that copy was made."""
        self._refused = False
        """True once that copy has refused a driver: a person must put back a newer one."""
        self._continued = False
        """True while a person is about to start the job that halted because its driver knew more than the copy."""
        self._lost = 0.0
        """When the last loss was recorded."""
        self.ending = ""
        self.settings = CheckpointSettings(
            interval=timedelta(seconds=faults.interval),
            timeout=timedelta(seconds=faults.timeout),
            tolerable_failed_checkpoints=faults.tolerable,
            lease=timedelta(seconds=faults.lease),
            stream_grace=timedelta(seconds=faults.stream_grace),
            orphan_grace=timedelta(seconds=faults.orphan_grace),
        )

    def run(self) -> None:
        """Run the world from its first start to its end."""
        clock = self.clock
        set_scheduler(clock)
        chance.setstate(_fresh(self.random))
        Hooks.kill_point = self.injector.kill_point
        Hooks.armed = lambda _point: self.injector.raging and self.faults.kill_points > 0
        Hooks.producer = self._producer
        try:
            faults = self.faults
            for _ in range(2 if faults.standby else 1):
                self._adopt(self.host.start())
            self.start_driver()
            self.injector.plan()
            done = clock.run(EPOCH + faults.fault_time, lambda: self.checker.violation is not None)
            self.injector.calm()
            until = clock.now + faults.patience + faults.transaction_timeout
            if self._missing:
                until += self._await_free()
            self.later(0.0, self._look_after)
            done = done or clock.run(until, self._over)
            if self.checker.violation is None and not self._job_over():
                self.checker.fail(Invariant.I8, f"{faults.patience:g} s after the last fault: {self._standing()}")
            if self.checker.violation is None:
                self._look_back()
        except Exception as error:  # noqa: BLE001 - any exception here is a bug of the product or of this model
            if self.checker.violation is None:
                where = "; ".join(
                    f"{frame.name} {frame.line}" for frame in traceback.extract_tb(error.__traceback__)[-3:]
                )
                self.checker.fail(Invariant.CODE, f"{type(error).__name__}: {error} ({where})")
        finally:
            self.host.close()
            clock.end(self.processes)
            set_scheduler(None)

    def note(self, who: str, what: str) -> None:
        """Write one line of the transcript."""
        if self.trace is not None:
            self.trace(self.clock.now - EPOCH, who, what)

    # -- the end

    def _job_over(self) -> bool:
        return self._done and not any(driver.alive for driver in self.drivers)

    @property
    def _done(self) -> bool:
        """True when the job is not started again. A person restarts one that was stopped or cancelled."""
        if self._refused:
            return True
        match self.checker.status:
            case JobStatus.FINISHED:
                return self.checker.last_ends == list(self.topic.totals)
            case JobStatus.HALTED:
                return not self._continued
            case _:
                return False

    def _over(self) -> bool:
        if self.checker.violation is not None:
            return True
        if not self._job_over():
            return False
        return self._refused or self.checker.status is JobStatus.HALTED or not self._open_transactions()

    def _open_transactions(self) -> Mapping[str, str]:
        """What holds readers back on any system."""
        return dict(chain.from_iterable(system.open_transactions().items() for system in self.systems))

    @property
    def _halts(self) -> list[str]:
        """Why the sinks' outcomes have halted the job."""
        return list(chain.from_iterable(checker.halts for checker in self.checkers))

    def _standing(self) -> str:
        durable = self.store.jobs.get(JOB)
        if durable is None:
            return "the job was never opened"
        completed = durable.completed
        where = f"checkpoint {completed.id} {'settled' if completed.settled else 'unsettled'}" if completed else "none"
        return f"job {durable.status.value} ({durable.status_detail}), completed {where}, at {self.checker.last_ends}"

    def _look_back(self) -> None:
        status = self.checker.status
        self.ending = status.value
        if self._refused:
            self.ending = "refused by an older copy of the store"
        elif status is JobStatus.HALTED:
            self.ending = f"halted: {self._halts[-1] if self._halts else 'other'}"
        else:
            for checker in self.checkers:
                checker.end(True, self._open_transactions())

    # -- what processes get of the systems

    def _known_systems(self, process: Process) -> Systems:
        """The systems of a coordinator with a file of them."""
        openers = {system.name: system.opener(process) for system in self.systems}

        def opens(name: str, *, generation: Callable[[], int | None] = lambda: None) -> System:
            return openers[name](name, generation=generation)

        named = {system.name: NamedSystem(kind=system.kind, configuration=system.name) for system in self.systems}
        return Systems({system.kind: opens for system in self.systems}, named)

    def _producer(self, config: Mapping[str, Any], **more: Any) -> SimProducer:
        servers = config["bootstrap.servers"]
        (brokers,) = [each for each in self.brokers if each.described.bootstrap_servers == servers]
        return brokers.producer(config, **more)

    # -- facts

    def _answered(self, generation: int, event: Event, answer: Answer) -> None:
        for system in self.systems:
            system.checker.answered(generation, event, answer)

    def _fact(self, before: Durable, fact: Fact, after: Durable) -> None:
        if self.trace is not None:
            self.note("store", _said(fact))
        if isinstance(fact, GenerationGranted):
            self._granted = self.clock.now
            self.counts["orphans"] += fact.driver == COORDINATOR
        elif isinstance(fact, LossRecorded):
            self._lost = self.clock.now
        for checker in self.checkers:
            checker.fact(before, fact, after)

    # -- processes

    def _adopt(self, process: Process) -> Process:
        self.processes.append(process)
        return process

    def _coordinator_died(self, process: Process) -> None:
        self.counts["kills"] += 1
        self.note(process.name, "dead")
        self.later(self._pause_before_restart(), self._restart_coordinator)

    def _restart_coordinator(self) -> None:
        self.counts["restarts"] += 1
        process = self._adopt(self.host.start())
        self.note(process.name, "started")

    def copy_the_store(self) -> Callable[[], None]:
        """Copy the store as it is now. Returns what puts the copy in its place."""
        store, claims = self.store.copy(), self._claims
        copies = [checker.copy() for checker in self.checkers]
        self.note("store", "a copy falls behind")

        def promote() -> None:
            self.counts["promotions"] += 1
            self._promoted = True
            self._claims_copied = claims
            self.store.promote(store)
            for checker, copy in zip(self.checkers, copies, strict=True):
                checker.promoted(copy)
            self.note("store", "the copy takes its place")

        return promote

    def permit_takeover(self) -> None:
        """Let a person permit the next driver to replace the live one."""
        if (durable := self.store.jobs.get(JOB)) is not None and (process := self.host.process) is not None:
            self.note(process.name, f"is asked to permit a takeover from generation {durable.generation}")
            self.host.ask(PermitTakeover(now=self.clock.now, generation=durable.generation, reason="Ada"))

    def start_driver(self) -> None:
        if self._missing:
            return
        self._continued = False
        self._driver_starts += 1
        process = self._adopt(Process(f"driver-{self._driver_starts}", "driver", self._driver_died))
        self.drivers.append(process)
        self.note(process.name, "started")
        executors = Executors(self.clock, process.name, self._worker_died, self._adopt)
        process.local[Executors] = executors
        self.clock.running = process
        self.clock.spawn(process, "main", lambda: self._drive(process, executors))
        self.clock.running = None

    def _drive(self, process: Process, executors: Executors) -> None:
        faults, clock = self.faults, self.clock
        sinks = [sink for system in self.systems for sink in system.sinks(process)]
        sink = process.local[SimulatedSink] = next(each for each in sinks if isinstance(each, SimulatedSink))
        channel = Channel(clock, process, self.host, self.rpc, self.wires)
        tasks = WorkerTasks(
            executors=executors,
            driver=process,
            job=JOB,
            sinks=sinks,
            topic=self.topic,
            faults=self.injector.task_faults,
            begun=lambda worker, what: self.note(worker.name, what),
            before=self._before_tasks,
            room=1 if faults.limit == 1 else 2,
        )
        source = ModelSource(
            self.topic,
            limit=lambda: faults.limit,
            pause=lambda: clock.sleep(0.002 * self.random.random()),
            restored=lambda positions: self._restored(sink.generation, positions),
        )
        pipeline = process.local[SimulatedPipeline] = SimulatedPipeline(
            Surroundings(
                channel=channel, patience=10.0, tasks=tasks, trace=lambda *said: self._journal(process, *said)
            ),
            job=JOB,
            source=source,
            sinks=sinks,
            settings=self.settings,
            restart=Restart(initial="200ms", maximum="2s"),
            tasks="staying" if faults.staying else "per_checkpoint",
        )
        try:
            reason = pipeline.run()
            self.note(process.name, f"left: {reason.value}")
        except HaltedError as error:
            self.note(process.name, f"halted: {error}")
            # A claim without its marker that a person must discard: the next start halts, too.
            forgotten = "ended its last transaction without a marker" in str(error)
            self._continued = self._promoted and not self._halts and not forgotten
        except FencedError as error:
            self.note(process.name, f"fenced: {error}")
            durable = self.store.jobs.get(JOB)
            current = durable is not None and durable.generation == sink.generation and durable.driver is not None
            if current and not self._promoted:  # a copy grants the same generation to another driver
                self.checker.fail(Invariant.I7, f"the driver of the current generation {sink.generation} is fenced")
        except RefusedError as error:
            self.note(process.name, f"refused: {error}")
            if not isinstance(error, JobBusyError):
                self._refuse(str(error))
        except OncewardError as error:
            self.note(process.name, f"left: {type(error).__name__}: {error}")
        clock.kill(process)

    @property
    def _outdated(self) -> bool:
        """True once an older copy has replaced the store, and the job was claimed after it was made. Such a store
        touches nothing of the job until a person decides."""
        return self._promoted and self._claims != self._claims_copied

    @property
    def _claims(self) -> int:
        """Claims that were written on any system."""
        return sum(system.claims for system in self.systems)

    def _refuse(self, why: str) -> None:
        if not self._outdated:
            self.checker.fail(Invariant.I8, f"a driver is refused by a store that knows everything: {why}")
        self._refused = True

    def _journal(self, process: Process, event: str, facts: dict[str, Any]) -> None:
        if self.trace is not None:
            self.note(process.name, " ".join((event, *(f"{key}={value}" for key, value in facts.items()))))
        if event == "failed" and "no other driver has the job" in facts["reason"]:
            self.counts["returns"] += 1
        if event == "recovered":
            self.counts["resumed"] += facts["resumed"]
            durable = self.store.jobs.get(JOB)
            if durable is not None and durable.generation == process.local[SimulatedSink].generation:
                for system in self.systems:
                    system.recovered(self._granted)

    def _before_tasks(self, checkpoint: CheckpointId) -> None:
        """Check that no transaction of a later checkpoint is open when the first lost record is written again."""
        if checkpoint <= self.checker.last_completed:
            self.counts["replays"] += 1
            for system in self.systems:
                system.replayed(self._lost)

    def _restored(self, generation: int, positions: list[int]) -> None:
        durable = self.store.jobs.get(JOB)
        current = durable is not None and durable.generation == generation and durable.driver is not None
        self.checker.restored(positions, current)

    def _driver_died(self, process: Process) -> None:
        self.drivers.remove(process)
        process.local[Executors].leave()
        break_streams(process)
        break_links(process)
        self.note(process.name, "dead")
        absence = self.random.random() * self.faults.absence if self.faults.absence else 0.0
        self.later(absence + self._pause_before_restart(), self._supervise)

    def _supervise(self) -> None:
        """A person or a container scheduler: start a driver if none runs, unless the job is over."""
        if not self.drivers and not self._done and not self._missing:
            self.counts["restarts"] += 1
            self.start_driver()

    def leave(self) -> None:
        """Kill all drivers; none starts until `_return`. To the coordinator they are gone forever."""
        self._missing, self._missing_since = True, self.clock.now
        self.note("world", "all drivers are gone")
        for driver in self.drivers:
            self.clock.kill(driver)

    def _await_free(self) -> float:
        """Schedule the return of the drivers. Returns the seconds until then, by which readers must be free."""
        alone = self.faults.lease + self.faults.orphan_grace + SETTLED_WITHIN
        self.later(alone, self._return)
        return alone

    def _return(self) -> None:
        durable = self.store.jobs.get(JOB)
        # No process ends what hangs before a person has decided about the store or the claim, and no timeout by now.
        forgotten = any(system.claim_forgotten for system in self.systems)
        lasting = self.faults.transaction_timeout > self.clock.now - self._missing_since
        left = bool(self.faults.skipped_markers or self.lakes or lasting) and (self._outdated or forgotten)
        if durable is not None and durable.status is not JobStatus.HALTED and not left:
            for system in self.systems:
                system.abandoned(self._missing_since)
        self._missing = False
        self._supervise()

    def _look_after(self) -> None:
        """After the faults: check every 5 s, and start a driver for a job that neither runs nor is over."""
        self._supervise()
        self.later(5.0, self._look_after)

    def _worker_died(self, process: Process) -> None:
        break_links(process)
        self.note(process.name, "dead")

    def _pause_before_restart(self) -> float:
        return self.random.random() * self.random.choice((0.05, 0.5, 3.0))

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self.clock.call(self.clock.outside, seconds, what)


def _fresh(random: Random) -> tuple[Any, ...]:
    """A state for the product's ``random``, seeded from the world's own."""
    return Random(random.getrandbits(64)).getstate()


def _said(fact: Fact) -> str:
    values = {
        name: value for name, value in vars(fact).items() if name not in ("snapshots", "settings", "participants")
    }
    return " ".join((type(fact).__name__, *(f"{name}={value}" for name, value in values.items())))
