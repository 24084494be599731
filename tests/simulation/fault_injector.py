"""Injects the faults of a world: when they start, what they hit, and when they stop."""

from typing import TYPE_CHECKING

from greenlet import GreenletExit

from onceward.common.killpoints import KillPoint
from onceward.protocol.events import CancelJob, RequestCheckpoint, StopJob
from onceward.protocol.values import CheckpointKind, RequestId
from tests.simulation.driver import SimulatedPipeline
from tests.simulation.executors import TaskFaults
from tests.simulation.links import network
from tests.simulation.scheduler import Process
from tests.simulation.streams import cut_streams
from tests.simulation.systems import ModelledSystem

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

__all__ = ["FaultInjector"]


class FaultInjector:
    """Injects the faults of its world's `FaultProfile`, at moments that the seed draws."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world = world
        self.raging = True

    def plan(self) -> None:
        faults, random = self._world.faults, self._world.random
        for number, total in enumerate(faults.totals):
            moments = sorted(random.random() * faults.fault_time for _ in range(total))
            for at in moments:
                self._world.later(at * 0.9, lambda number=number: self._append(number))  # type: ignore[misc]
        for times, what in (
            (faults.coordinator_kills, self._kill_coordinator),
            (faults.driver_kills, self._kill_driver),
            (faults.driver_pauses, self._pause_driver),
            (faults.coordinator_pauses * (3 if faults.standby else 1), self._pause_coordinator),
            (faults.lost_locks, self._lose_lock),
            (faults.promotions, self._fall_behind),
            (faults.takeovers, self._take_over),
            (faults.cuts, self._cut),
            (faults.kafka_cuts, self._cut_kafka),
            (faults.task_cuts if faults.staying else 0, self._cut_tasks),
            (faults.moves, self._move),
            (faults.broker_failures, self._fail_broker),
            (faults.hijacks, self._hijack),
            (faults.clean_ups, self._clean_up),
            (faults.stops, self._stop),
            (faults.cancels, self._cancel),
            (faults.wishes, self._wish),
        ):
            for _ in range(times):
                self._world.later(random.random() * faults.fault_time, what)
        if faults.gone:
            self._world.later(random.random() * faults.fault_time * 0.7, self._world.leave)

    def _append(self, number: int) -> None:
        if self._world.topic.there[number] < self._world.topic.totals[number]:
            self._world.topic.there[number] += 1

    def task_faults(self) -> TaskFaults:
        return self._world.faults.tasks if self.raging else TaskFaults()

    def kill_point(self, point: KillPoint) -> None:
        process = self._world.clock.running
        if not self.raging or process is None:
            return
        faults, random = self._world.faults, self._world.random
        if point is KillPoint.DRIVER_AFTER_DECISION and faults.robberies and random.random() < faults.robberies:
            for system in self._world.systems:
                for name in sorted(system.unsettled):
                    if random.random() < 0.5:
                        system.hijack({name})
        if point is KillPoint.DRIVER_AFTER_DECISION and faults.torn and random.random() < faults.torn:
            system = self._a_system()
            system.tear(system.unsettled)
        if faults.kill_points and random.random() < faults.kill_points:
            self._die(process, point.value)

    def step(self, what: str) -> None:
        """A process is about to do one of many small steps. It may die there, or sleep before a commit or a file."""
        process, faults = self._world.clock.running, self._world.faults
        if not self.raging or process is None:
            return
        if faults.kill_points and self._world.random.random() < faults.kill_points / 8:
            self._die(process, what)
        rate = 0.0
        if process.kind == "driver" and what.startswith("commits"):
            rate = faults.driver_pauses / 10
        elif process.kind == "worker" and what.startswith("opens"):
            rate = faults.tasks.stopped
        if rate and self._world.random.random() < rate:
            self._pause(process)
            self._world.clock.sleep(0.0)

    def _die(self, process: Process, where: str) -> None:
        self._world.counts["kills"] += 1
        self._world.note(process.name, f"killed at {where}")
        self._world.clock.kill(process)
        raise GreenletExit

    def _kill_coordinator(self) -> None:
        if self._world.host.process is not None and self.raging:
            self._world.note(self._world.host.process.name, "killed")
            self._world.clock.kill(self._world.host.process)

    def _a_driver(self) -> Process | None:
        running = [driver for driver in self._world.drivers if driver.alive]
        return self._world.random.choice(running) if running and self.raging else None

    def _a_system(self) -> ModelledSystem:
        systems = self._world.systems
        return self._world.random.choice(systems) if len(systems) > 1 else systems[0]

    def _kill_driver(self) -> None:
        if (driver := self._a_driver()) is not None:
            self._world.counts["kills"] += 1
            self._world.note(driver.name, "killed")
            self._world.clock.kill(driver)

    def _pause_driver(self) -> None:
        if (driver := self._a_driver()) is not None:
            self._pause(driver)

    def _pause_coordinator(self) -> None:
        if self._world.host.process is not None and self.raging:
            self._pause(self._world.host.process)

    def _lose_lock(self) -> None:
        if self.raging and self._world.store.lose_lock():
            self._world.counts["lost_locks"] += 1
            self._world.note("store", "loses the lock of the leader, whose session continues")

    def _fall_behind(self) -> None:
        """Let a copy of the store fall behind, and replace the store some time later."""
        promote = self._world.copy_the_store()
        lag = self._world.random.random() * self._world.random.choice((0.1, 0.5, 3.0))

        def replace() -> None:
            if self.raging:
                promote()

        self._world.later(lag, replace)

    def _pause(self, process: Process) -> None:
        if process.paused:
            return
        self._world.counts["pauses"] += 1
        self._world.note(process.name, "stopped")
        self._world.clock.pause(process)
        self._world.later(
            self._world.random.random() * self._world.random.choice((0.5, 5.0, 20.0)), lambda: self.resume(process)
        )

    def resume(self, process: Process) -> None:
        if process.alive and process.paused:
            self._world.note(process.name, "continued")
            self._world.clock.resume(process)

    def _cut(self) -> None:
        if self.raging:
            self._world.counts["cuts"] += 1
            self._world.note("network", "drivers and coordinator are cut off")
            self._world.rpc.cut = True
            for driver in self._world.drivers:
                cut_streams(driver)
            self._world.later(self._world.random.random() * self._world.random.choice((0.5, 3.0, 8.0)), self._mend)

    def _mend(self) -> None:
        self._world.note("network", "drivers and coordinator are connected")
        self._world.rpc.cut = False

    def _cut_tasks(self) -> None:
        if self.raging and not network().cut:
            self._world.counts["cuts"] += 1
            self._world.note("network", "drivers and tasks are cut off")
            network().cut = True
            self._world.later(
                self._world.random.random() * self._world.random.choice((0.5, 3.0, 8.0)), self._mend_tasks
            )

    def _mend_tasks(self) -> None:
        self._world.note("network", "drivers and tasks are connected")
        network().cut = False

    def _cut_kafka(self) -> None:
        if self.raging:
            self._world.counts["cuts"] += 1
            self._a_system().cut(self._world.random.random() * self._world.random.choice((0.5, 3.0, 8.0)))

    def _move(self) -> None:
        if self.raging:
            self._a_system().move()

    def _fail_broker(self) -> None:
        if self.raging:
            self._a_system().fail(self._world.random.random() * self._world.random.choice((0.5, 4.0)))

    def _hijack(self) -> None:
        if self.raging:
            self._a_system().hijack()

    def _clean_up(self) -> None:
        if self.raging:
            self._a_system().clean_up()

    def _take_over(self) -> None:
        """Let a person start a second driver that may replace the first, sometimes because that does not respond."""
        driver = self._a_driver()
        if driver is not None and self._world.random.random() < 0.5:
            self._pause(driver)
        if self.raging:
            self._world.permit_takeover()
            self._world.start_driver()

    def _stop(self) -> None:
        """Let a person stop the job, through the coordinator or by a signal to the driver."""
        driver = self._a_driver()
        process = self._world.host.process
        if driver is None or process is None:
            return
        self._world.counts["stops"] += 1
        if self._world.random.random() < 0.5:
            self._world.note(driver.name, "gets SIGTERM")
            driver.local[SimulatedPipeline].stop()
        else:
            self._world.note(process.name, "is asked to stop the job")
            self._world.host.ask(StopJob(now=self._world.clock.now))

    def _cancel(self) -> None:
        """Let a person cancel the job; it is started again later."""
        if (process := self._world.host.process) is not None and self.raging:
            self._world.counts["stops"] += 1
            self._world.note(process.name, "is asked to cancel the job")
            self._world.host.ask(CancelJob(now=self._world.clock.now))

    def _wish(self) -> None:
        """Let a person ask for a checkpoint, a savepoint, or a savepoint that ends the job."""
        if (process := self._world.host.process) is None or not self.raging:
            return
        kind = self._world.random.choice((CheckpointKind.CHECKPOINT, CheckpointKind.SAVEPOINT))
        wanted = RequestCheckpoint(
            now=self._world.clock.now,
            request=RequestId(f"{self._world.random.getrandbits(64):016x}"),
            kind=kind,
            stop=kind is CheckpointKind.SAVEPOINT and self._world.random.random() < 0.5,
        )
        self._world.note(process.name, f"is asked for a {kind.value}{' and the end' if wanted.stop else ''}")
        self._world.host.ask(wanted)

    def calm(self) -> None:
        """End all faults."""
        self.raging = False
        self._world.note("world", "the faults are over")
        self._world.topic.there = list(self._world.topic.totals)
        self._world.rpc.heal()
        network().cut = False
        for system in self._world.systems:
            system.heal()
        self._world.store.heal()
        for process in self._world.processes:
            if process.alive and process.paused and process.kind != "worker":
                self.resume(process)
