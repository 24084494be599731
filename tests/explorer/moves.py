"""All moves of a small world."""

from collections.abc import Iterator
from typing import NamedTuple

from tests.explorer.coordinator import Coordinators, Result
from tests.explorer.drivers import GONE, Local, answered, calls, cut_off, instructed, local, overlooked
from tests.explorer.invariants import Invariant, Violation
from tests.explorer.probes import useless
from tests.explorer.witness import Demand
from tests.explorer.world import Bounds, Call, Driver, Fault, Kafka, Phase, Stream, Table, World

__all__ = ["Move", "Moves"]

_CRASH, _MESSAGE, _STORE, _TIMEOUT = (1 << fault for fault in (Fault.CRASH, Fault.MESSAGE, Fault.STORE, Fault.TIMEOUT))


class Turn(NamedTuple):
    """A call of a driver that can be answered now."""

    call: Call
    result: Result
    told: int
    """The driver that has its answer."""
    violation: Violation | None


class Move(NamedTuple):
    """One move, and the world after it."""

    label: tuple[object, ...]
    """(what, details ..), see ``report``."""
    world: World
    cost: Fault | None
    violation: Violation | None


class Moves:
    """Knows all parts by number, and what each can do."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.coordinators = Coordinators(bounds)
        self.drivers: Table[Driver] = Table()
        self.kafkas: Table[Kafka] = Table()
        self.strays: Table[tuple[Call, ...]] = Table()
        self._absent = self.drivers.number(Driver())
        self._gone = self.drivers.number(GONE)
        self._turns: dict[tuple[int, int], tuple[Turn, ...]] = {}
        self._missed: dict[tuple[int, int], tuple[int, int]] = {}
        self._told: dict[tuple[int, int, int], int] = {}
        self._kept: dict[tuple[int, int], int] = {}
        self._locals: dict[tuple[int, int], tuple[tuple[Local, int, int], ...]] = {}

    def start(self) -> World:
        """A fresh store, and a driver that asks to open the job."""
        first = self.drivers.number(Driver(phase=Phase.OPENING, token=1))
        return World(0, first, self._absent, self.strays.number(()), self.kafkas.number(Kafka()))

    # -- everything that can happen

    def of(self, world: World, *, faults: int) -> Iterator[Move]:
        """All moves; of those that cost something only the ones whose bits are in ``faults``."""
        for slot in (0, 1):
            for turn in self._turns_of(world.coordinator, world[1 + slot]):
                yield from self._delivered(world, slot, turn, faults)
            yield from self._alone(world, slot, faults)
        stray = self.strays.values[world.stray]
        for i, call in enumerate(stray):
            if i == 0 or stray[i - 1] != call:
                yield from self._strayed(world, call, faults)
        yield from self._clocks(world, faults)
        yield from self._starts(world)
        if faults & _CRASH:
            yield from self._crashes(world)
        if faults & _MESSAGE:
            yield from self._breaks(world)

    def _delivered(self, world: World, slot: int, turn: Turn, faults: int) -> Iterator[Move]:
        """A call of a living driver reaches the coordinator."""
        call, result, told, violation = turn
        label = ("call", slot, call)
        violation = violation or self._demanded(result.demand, world)
        yield Move((*label, ""), self._after(world, result.after, slot, told, call), None, violation)
        yield from self._written(world, label, result, faults)
        if faults & _MESSAGE:
            if told != world[1 + slot]:
                lost = self._after(world, result.after)
                yield Move((*label, "answer lost"), lost, Fault.MESSAGE, violation)
            doubled = self._after(world, result.after, slot, told, call, (call,))
            yield Move((*label, "doubled"), doubled, Fault.MESSAGE, violation)

    def _strayed(self, world: World, call: Call, faults: int) -> Iterator[Move]:
        """A call that nobody waits for reaches the coordinator; it may also stay under way for ever."""
        result = self.coordinators.call(world.coordinator, call)
        if self._beyond(result):
            return
        violation = result.violation or self._demanded(result.demand, world)
        left = list(self.strays.values[world.stray])
        left.remove(call)
        world = world._replace(stray=self.strays.number(tuple(left)))
        yield Move(("stray", call, ""), self._after(world, result.after), None, violation)
        yield from self._written(world, ("stray", call), result, faults)

    def _written(self, world: World, label: tuple[object, ...], result: Result, faults: int) -> Iterator[Move]:
        """The coordinator dies around a write. Dying before it is dying before the call came: see ``_crashes``."""
        if result.restarted < 0:
            return
        if faults & _CRASH and label[0] == "call":
            for how, after in self._restarted(world, result.restarted):
                yield Move((*label, "dies before it answers", how), after, Fault.CRASH, None)
        if faults & _STORE:
            for how, after in self._restarted(world, result.restarted):
                yield Move((*label, "store unknown, written", how), after, Fault.STORE, None)
            for how, after in self._restarted(world, self.coordinators.restart(world.coordinator)):
                yield Move((*label, "store failed", how), after, Fault.STORE, None)

    def _alone(self, world: World, slot: int, faults: int) -> Iterator[Move]:
        """What a driver does without the coordinator."""
        for move, driver, kafka in self._locals_of(world[1 + slot], world.kafka):
            if move.cost is not None and not faults >> move.cost & 1:
                continue
            before = world if kafka == world.kafka else World(*world[:4], kafka)
            after = self._after(before, world.coordinator, slot, driver, None, move.sent)
            violation = move.violation or self._rightful(world, move)
            yield Move(("driver", slot, move.label), after, move.cost, violation)

    def _clocks(self, world: World, faults: int) -> Iterator[Move]:
        """Time runs out, or the end of a stream is noticed."""
        view = self.coordinators.views[world.coordinator]
        if view.unanswered and faults & _TIMEOUT:
            yield from self._clock(world, Call("expire", 0), Fault.TIMEOUT, faults)
        if view.session and not view.stream:
            yield from self._clock(world, Call("lease", 0), None, faults)
        if view.stream and not any(
            self.drivers.values[number].generation == view.generation
            and self.drivers.values[number].stream is Stream.OPEN
            for number in (world.first, world.second)
        ):
            yield from self._clock(world, Call("lost", view.generation), None, faults)

    def _clock(self, world: World, call: Call, cost: Fault | None, faults: int) -> Iterator[Move]:
        result = self.coordinators.call(world.coordinator, call)
        if result.after == world.coordinator:
            return
        violation = result.violation or self._demanded(result.demand, world)
        yield Move(("time", call, ""), self._after(world, result.after), cost, violation)
        if cost is None:
            yield from self._written(world, ("time", call), result, faults)

    def _starts(self, world: World) -> Iterator[Move]:
        """A person starts a second driver, which takes the job over."""
        if world.second != self._absent or world.first == self._absent:
            return
        if self.coordinators.views[world.coordinator].generation < self.bounds.generations:
            number = self.drivers.number(Driver(phase=Phase.OPENING, token=2))
            yield Move(("start", 1, 2), world._replace(second=number), None, None)

    def _crashes(self, world: World) -> Iterator[Move]:
        """The coordinator between two calls; a driver anywhere: what it has sent may still arrive."""
        for how, after in self._restarted(world, self.coordinators.restart(world.coordinator)):
            yield Move(("coordinator dies", how), after, Fault.CRASH, None)
        view = self.coordinators.views[world.coordinator]
        for slot in (0, 1):
            driver = self.drivers.values[world[1 + slot]]
            if driver.phase is Phase.OPENING or (
                driver.generation == view.generation and driver.phase is not Phase.GONE
            ):
                after = self._after(world, world.coordinator, slot, self._gone, None, calls(driver))
                yield Move(("driver dies", slot), after, Fault.CRASH, None)

    def _breaks(self, world: World) -> Iterator[Move]:
        """The stream breaks: what was on its way on it is lost, the driver asks for it again."""
        for slot in (0, 1):
            driver = self.drivers.values[world[1 + slot]]
            if driver.stream is Stream.OPEN:
                cut = overlooked(driver)._replace(stream=Stream.WANTED)
                after = self._after(world, world.coordinator, slot, self.drivers.number(cut))
                yield Move(("stream breaks", slot), after, Fault.MESSAGE, None)

    # -- how it goes on when nothing goes wrong any more

    def fair(self, world: World) -> Move | None:
        """The next move of a schedule without faults: everything under way arrives, everybody does what is due.

        None when nothing is left to do. A job without a driver is started again, beyond the bound of generations.
        """
        view = self.coordinators.views[world.coordinator]
        for call in self.strays.values[world.stray]:
            if not self._beyond(self.coordinators.call(world.coordinator, call)):
                return next(self._strayed(world, call, 0))
        owner = -1
        for slot in (0, 1):
            driver = self.drivers.values[world[1 + slot]]
            if driver.phase in (Phase.ABSENT, Phase.GONE):
                continue
            if driver.phase is not Phase.OPENING and not (view.owned and driver.generation == view.generation):
                return Move(
                    ("driver", slot, "hears that it is fenced"), self._with(world, slot, self._gone), None, None
                )
            owner = slot
            for turn in self._turns_of(world.coordinator, world[1 + slot], beyond=True):
                return next(self._delivered(world, slot, turn, 0))
            for move in self._alone(world, slot, 0):
                return move
        if owner >= 0:
            return self._undone(world, owner)
        if view.stream:
            return next(self._clock(world, Call("lost", view.generation), None, 0))
        slot = 1 if world.second == self._absent else 0
        token = 10 + view.generation
        number = self.drivers.number(Driver(phase=Phase.OPENING, token=token))
        return Move(("start", slot, token), self._with(world, slot, number), None, None)

    def _undone(self, world: World, slot: int) -> Move | None:
        """The trigger after the last of this world tells its driver what came to nothing."""
        view, driver = self.coordinators.views[world.coordinator], self.drivers.values[world[1 + slot]]
        if not view.goes_on or view.undecided or driver.answered <= view.history.last:
            return None
        told = self.drivers.number(driver._replace(phase=Phase.ABANDONING, call=driver.answered))
        label = ("driver", slot, f"hears of a later checkpoint that builds on {view.history.last}")
        return Move(label, self._with(world, slot, told), None, None)

    def unfinished(self, world: World) -> Violation | None:
        """What is wrong with a world in which nothing is left to do."""
        history = self.coordinators.views[world.coordinator].history
        kafka = self.kafkas.values[world.kafka]
        if not history.settled:
            return Violation(Invariant.SETTLED, f"checkpoint {history.last} is completed and never settled")
        if kafka.open:
            return Violation(Invariant.SETTLED, f"the transaction of checkpoint {kafka.open[0][0]} stays open for ever")
        if kafka.committed.bit_count() != max(history.end, 0):
            text = f"{kafka.committed.bit_count()} records are visible, {history.end} are in completed checkpoints"
            return Violation(Invariant.TILES, text)
        if history.undecided:
            return Violation(Invariant.SETTLED, f"checkpoint {history.undecided} stays undecided for ever")
        return None

    # -- parts

    def _beyond(self, result: Result) -> bool:
        return self.coordinators.views[result.after].generation > self.bounds.generations

    def _with(self, world: World, slot: int, driver: int) -> World:
        return world._replace(first=driver) if slot == 0 else world._replace(second=driver)

    def _turns_of(self, coordinator: int, driver: int, *, beyond: bool = False) -> tuple[Turn, ...]:
        """What the driver's calls do; those that would go beyond the bound of generations only when asked for."""
        key = (coordinator, driver)
        found = self._turns.get(key)
        if found is None or beyond:
            d, turns = self.drivers.values[driver], list[Turn]()
            for call in calls(d):
                result = self.coordinators.call(coordinator, call)
                if beyond or not self._beyond(result):
                    told = answered(d, call, result.reply)
                    refused = told if isinstance(told, Violation) else None
                    number = driver if isinstance(told, Violation) else self.drivers.number(told)
                    turns.append(Turn(call, result, number, result.violation or refused))
            found = tuple(turns)
            if not beyond:
                self._turns[key] = found
        return found

    def _locals_of(self, driver: int, kafka: int) -> tuple[tuple[Local, int, int], ...]:
        found = self._locals.get((driver, kafka))
        if found is None:
            found = self._locals[driver, kafka] = tuple(
                (move, self.drivers.number(move.driver), self.kafkas.number(move.kafka))
                for move in local(self.drivers.values[driver], self.kafkas.values[kafka])
            )
        return found

    def _demanded(self, demand: Demand, world: World) -> Violation | None:
        if not demand.committed and demand.open is None:
            return None
        kafka = self.kafkas.values[world.kafka]
        if demand.committed and not kafka.committed >> demand.committed & 1:
            return Violation(Invariant.SETTLED, f"checkpoint {demand.committed} counts as settled and is not committed")
        if demand.open is not None and demand.open not in kafka.open:
            text = f"checkpoint {demand.open[0]} is completed, its transaction is not open any more"
            return Violation(Invariant.TILES, text)
        return None

    def _rightful(self, world: World, move: Local) -> Violation | None:
        """Commits follow a durable decision, aborts never contradict one."""
        completed = self.coordinators.views[world.coordinator].history.completed
        if move.committed and not completed >> move.committed & 1:
            text = f"the transaction of checkpoint {move.committed} is committed before the decision is durable"
            return Violation(Invariant.ONE_DECISION, text)
        for checkpoint in move.aborted:
            if completed >> checkpoint & 1:
                text = f"checkpoint {checkpoint} is completed, its transaction is aborted"
                return Violation(Invariant.NEVER_CHANGES, text)
        return None

    def _after(
        self,
        world: World,
        coordinator: int,
        slot: int = -1,
        driver: int = 0,
        call: Call | None = None,
        strayed: tuple[Call, ...] = (),
    ) -> World:
        """The world with another coordinator and driver: instructions sent, what cannot matter any more left out."""
        before, first, second, stray, kafka = world
        shown = -1 if call is not None and call.kind == "watch" else before
        if slot == 0:
            first, second = self._tell(driver, shown, coordinator), self._tell(second, before, coordinator)
        elif slot == 1:
            first, second = self._tell(first, before, coordinator), self._tell(driver, shown, coordinator)
        else:
            first, second = self._tell(first, before, coordinator), self._tell(second, before, coordinator)
        if strayed:
            stray = self.strays.number(tuple(sorted((*self.strays.values[stray], *strayed))))
        return World(coordinator, first, second, self._keep(stray, coordinator), kafka)

    def _tell(self, driver: int, before: int, after: int) -> int:
        """Send what is wanted now and was not shown before (``before`` = -1: a new stream, nothing was shown)."""
        key = (driver, before, after)
        found = self._told.get(key)
        if found is None:
            d, view = self.drivers.values[driver], self.coordinators.views[after]
            if d.stream is Stream.OPEN and view.owned and d.generation == view.generation:
                shown = self.coordinators.views[before].wanted if before >= 0 else ()
                d = instructed(d, tuple(one for one in view.wanted if one not in shown))
            found = self._told[key] = self.drivers.number(cut_off(d, view))
        return found

    def _keep(self, stray: int, coordinator: int) -> int:
        key = (stray, coordinator)
        found = self._kept.get(key)
        if found is None:
            view = self.coordinators.views[coordinator]
            kept = tuple(call for call in self.strays.values[stray] if not useless(call, view, self.bounds.generations))
            found = self._kept[key] = self.strays.number(kept)
        return found

    def _restarted(self, world: World, coordinator: int) -> Iterator[tuple[str, World]]:
        """Streams break with the coordinator; what was on its way on them arrives all the same, or is lost."""
        first, first_lost = self._cut_off(world.first, coordinator)
        second, second_lost = self._cut_off(world.second, coordinator)
        stray = self._keep(world.stray, coordinator)
        yield "", World(coordinator, first, second, stray, world.kafka)
        if first_lost != first or second_lost != second:
            yield "instructions lost", World(coordinator, first_lost, second_lost, stray, world.kafka)

    def _cut_off(self, driver: int, coordinator: int) -> tuple[int, int]:
        """The driver after a restart of its coordinator, with and without the instructions on their way."""
        key = (driver, coordinator)
        found = self._missed.get(key)
        if found is None:
            d, view = self.drivers.values[driver], self.coordinators.views[coordinator]
            missed = overlooked(d) if d.stream is Stream.OPEN else d
            stream = Stream.NONE if d.stream is Stream.NONE else Stream.WANTED
            found = self._missed[key] = (
                self.drivers.number(cut_off(d._replace(stream=stream), view)),
                self.drivers.number(cut_off(missed._replace(stream=stream), view)),
            )
        return found
