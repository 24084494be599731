"""All moves of a small world."""

from typing import NamedTuple

from onceward.protocol.answers import Verdict
from tests.explorer import tables
from tests.explorer.coordinator import Coordinators, Result, View
from tests.explorer.drivers import (
    GONE,
    Local,
    answered,
    calls,
    cut_off,
    heard,
    instructed,
    left_behind,
    local,
    over_for_good,
    overlooked,
    refused,
    standing_in,
)
from tests.explorer.oracle import Demand, Output
from tests.explorer.probes import useless
from tests.explorer.world import (
    IN_PLACE,
    IN_PLACE_ON_COPY,
    SINKS,
    Bounds,
    Call,
    Claim,
    Driver,
    Fault,
    Flight,
    Kafka,
    Phase,
    SmallWorld,
    Stream,
    Table,
    Transaction,
)
from tests.support.oracle import Invariant, Violation

__all__ = ["Move", "Moves"]

Label = tuple[object, ...]
"""What happens, with details; see ``report``."""

_CRASH, _MESSAGE, _TIMEOUT = 1 << Fault.CRASH, 1 << Fault.MESSAGE, 1 << Fault.TIMEOUT
_REQUEST = 1 << Fault.REQUEST
_LOSS = 1 << Fault.LOSS
_TAKEOVER = 1 << Fault.TAKEOVER
_PROMOTION = 1 << Fault.PROMOTION
_DEATH = _CRASH | 1 << Fault.STORE

REQUESTS = (
    Call("stop", 0),
    Call("cancel", 0),
    Call("savepoint", 0, who="r1"),
    Call("savepoint", 0, who="r2", data=True),
)
"""What a person may ask the coordinator for."""


class Turn(NamedTuple):
    """A driver's call that can be answered now."""

    call: Call
    result: Result
    reported: int
    """The driver after the answer."""
    violation: Violation | None


class Move(NamedTuple):
    """One move, and the world after it."""

    label: Label
    world: SmallWorld
    cost: int
    """Bits of faults; the budget must allow one of them. 0 for none."""
    violation: Violation | None


class Moves:
    """Knows all parts by number, and the moves of each."""

    fenced = True
    """Whether the store refuses the writes of a coordinator that leads no more."""
    ignored = True
    """Whether drivers ignore a coordinator that leads no more, once its successor has answered them."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.coordinators = Coordinators(bounds)
        self.drivers: Table[Driver] = Table()
        self.kafkas: Table[Kafka] = Table()
        self.strays: Table[tuple[Call, ...]] = Table()
        self._gone = self.drivers.number(GONE)
        self._turns: dict[tuple[int, int, bool], tuple[Turn, ...]] = {}
        self._claims = bounds.claims
        self._strict = not bounds.output_only
        self._missed: dict[tuple[int, int, int, int], tuple[int, int]] = {}
        self._reported: dict[tuple[int, int, int, int, int], int] = {}
        self._kept: dict[tuple[int, int, int], int] = {}
        self._locals: dict[tuple[int, int], tuple[tuple[Local, int, int], ...]] = {}

    def start(self) -> SmallWorld:
        """A fresh store and two drivers yet to start; the second takes over."""
        first, second = (self.drivers.number(self._absent(token)) for token in (1, 2))
        strays, kafka = self.strays.number(()), self.kafkas.number(Kafka())
        return SmallWorld(0, first, second, strays, kafka, self._gone, -1, self._gone, 0, -1)

    def _absent(self, token: int) -> Driver:
        """A driver that is yet to start."""
        of = self.bounds
        return Driver(
            token=token, stays=of.staying, claims=self._claims, sinks=of.sinks, table=of.table, database=of.database
        )

    # -- all moves

    def of(self, world: SmallWorld, *, faults: int) -> list[Move]:
        """All moves; of those that cost budget, only the ones whose bits are in ``faults``."""
        moves: list[Move] = []
        for slot in (0, 1):
            for turn in self._turns_of(world.coordinator, world[1 + slot]):
                moves += self._delivered(world, slot, turn, faults)
            moves += self._alone(world, slot, faults)
        if world.stray:
            for call in dict.fromkeys(self.strays.values[world.stray]):
                moves += self._strayed(world, call, faults)
        moves += self._clocks(world, faults)
        moves += self._at_table(world)
        if self.bounds.alone:
            moves += self._stands_in(world, faults)
        if faults & _LOSS:
            moves += self._losses(world)
        if faults & _REQUEST:
            moves += self._requests(world, faults)
        if faults & _DEATH:
            restarted = self.coordinators.restart(world.coordinator)
            moves += self._restarted(world, restarted, ("coordinator dies",), faults & _DEATH)
        if faults & _CRASH:
            moves += self._crashes(world)
        if faults & _MESSAGE:
            moves += self._breaks(world)
        if world.former >= 0:
            moves += self._formerly(world)
        elif faults & _TAKEOVER:
            moves += self._taken_over(world, ("coordinator stands still",))
        if world.copy >= 0:
            moves += self._promoted(world, world.coordinator, ("copy", "is promoted"))
            if faults & _TAKEOVER and world.former < 0:
                outdated = world._replace(former=world.coordinator, former_alone=world.alone, aware=0)
                label: Label = ("copy", "is promoted, and the leader does not know")
                moves += self._promoted(outdated, world.coordinator, label, _TAKEOVER)
        elif faults & _PROMOTION:
            copy = self.coordinators.restart(world.coordinator)
            moves.append(Move(("copy", "falls behind"), world._replace(copy=copy), _PROMOTION, None))
        return moves

    def _delivered(self, world: SmallWorld, slot: int, turn: Turn, faults: int) -> list[Move]:
        """A living driver's call reaches the coordinator."""
        call, result, reported, violation = turn
        label: Label = ("call", slot, call)
        if result.demand is not None:
            violation = violation or self._demanded(result.demand, world)
        moves = [
            Move(label, self._heard(world, slot, self._after(world, result.after, slot, reported, call)), 0, violation)
        ]
        driver = self.drivers.values[world[1 + slot]]
        if driver.phase is Phase.ABSENT:
            world = self._with(world, slot, self.drivers.number(driver._replace(phase=Phase.OPENING)))
        if result.restarted >= 0 and faults & _DEATH:
            moves += self._restarted(world, result.restarted, (*label, "dies before it answers"), faults & _DEATH)
        if result.restarted >= 0 and faults & _TAKEOVER and world.former < 0:
            moves += self._taken_over(self._after(world, result.after), (*label, "stands still before it answers"))
        if result.restarted >= 0 and world.copy >= 0:
            moves += self._promoted(world, result.after, (*label, "the copy is promoted before it answers"))
        if faults & _MESSAGE:
            if reported != world[1 + slot]:
                lost = self._after(world, result.after)
                moves.append(Move((*label, "answer lost"), lost, _MESSAGE, violation))
            if call.kind != "watch":  # see ``left_behind``
                doubled = self._heard(world, slot, self._after(world, result.after, slot, reported, call, (call,)))
                moves.append(Move((*label, "doubled"), doubled, _MESSAGE, violation))
        return moves

    def _strayed(self, world: SmallWorld, call: Call, faults: int) -> list[Move]:
        """A call that no thread waits for reaches the coordinator; it may also stay in flight forever."""
        result = self.coordinators.call(world.coordinator, call)
        if self._beyond(result):
            return []
        violation = result.violation or (result.demand and self._demanded(result.demand, world))
        left = list(self.strays.values[world.stray])
        left.remove(call)
        world = world._replace(stray=self.strays.number(tuple(left)))
        return [Move(("stray", call), self._after(world, result.after), 0, violation)]

    def _alone(self, world: SmallWorld, slot: int, faults: int) -> list[Move]:
        """What a driver does without the coordinator."""
        moves: list[Move] = []
        for done, driver, kafka in self._locals_of(world[1 + slot], world.kafka):
            cost = 0 if done.cost is None else 1 << done.cost
            if cost & ~faults:
                continue
            violation, driver = self._judged(world, done, driver)
            before = world if kafka == world.kafka else world._replace(kafka=kafka)
            after = self._after(before, world.coordinator, slot, driver, None, done.sent)
            moves.append(Move(("driver", slot, done.label), after, cost, violation))
        return moves

    def _judged(self, world: SmallWorld, done: Local, driver: int) -> tuple[Violation | None, int]:
        """What is wrong with a driver's move, and the driver after it."""
        violation = done.violation or self._rightful(world, done)
        if violation is not None and done.failed is not None and self._forked(world):
            return None, self.drivers.number(done.failed)
        return violation, driver

    def _left(self, world: SmallWorld) -> bool:
        """True when something is left for the coordinator to end; what is lost waits for a driver."""
        output = self.coordinators.views[world.coordinator].output
        return (not output.settled and not output.lost) or bool(self.kafkas.values[world.kafka].open)

    def _clocks(self, world: SmallWorld, faults: int) -> list[Move]:
        """Time runs out, or the coordinator notices the end of a stream."""
        view = self.coordinators.views[world.coordinator]
        moves: list[Move] = []
        if view.unanswered and faults & _TIMEOUT:
            moves += self._clock(world, Call("expire", 0), _TIMEOUT)
        if view.lapses:
            moves += self._clock(world, Call("lease", 0))
        if view.owes and faults & _TIMEOUT:
            moves += self._clock(world, Call("overdue", 0), _TIMEOUT)
        if view.stream and not any(
            self._owns(view, self.drivers.values[number]) and self.drivers.values[number].stream is Stream.OPEN
            for number in (world.first, world.second)
        ):
            moves += self._clock(world, Call("lost", view.generation))
        return moves

    def _clock(self, world: SmallWorld, call: Call, cost: int = 0) -> list[Move]:
        result = self.coordinators.call(world.coordinator, call)
        if result.after == world.coordinator:
            return []
        violation = result.violation or (result.demand and self._demanded(result.demand, world))
        return [Move(("time", call), self._after(world, result.after), cost, violation)]

    def _restarted(self, world: SmallWorld, coordinator: int, label: Label, cost: int) -> list[Move]:
        """The coordinator dies and restarts as ``coordinator``.

        Streams break; instructions in flight still arrive, or are lost. A death between an answer and the instructions
        is this move after the call. A death before a write, with the call in flight, is this move before it. A store
        fault ends the process at a write. It counts as one more such death at any point, which covers more than can
        happen.
        """
        first, first_lost = self._cut_off(world.first, coordinator, world.former, world.copy)
        second, second_lost = self._cut_off(world.second, coordinator, world.former, world.copy)
        stray = self._keep(world.stray, coordinator, world.copy)
        after = world._replace(coordinator=coordinator, first=first, second=second, stray=stray, alone=self._gone)
        moves = [Move(label, after, cost, None)]
        if first_lost != first or second_lost != second:
            lost = after._replace(first=first_lost, second=second_lost)
            moves.append(Move((*label, "instructions lost"), lost, cost, None))
        return moves

    def _taken_over(self, world: SmallWorld, label: Label) -> list[Move]:
        """The coordinator stands still, and another one leads: it starts from the store."""
        restarted = self.coordinators.restart(world.coordinator)
        world = world._replace(former=world.coordinator, former_alone=world.alone, aware=0)
        return self._restarted(world, restarted, label, _TAKEOVER)

    def _promoted(self, world: SmallWorld, current: int, label: Label, cost: int = 0) -> list[Move]:
        """The database is lost, with the coordinator ``current``. A coordinator starts from the copy.

        Calls that no thread waits for may still arrive, but not those that open the job: they end with the connection
        to the coordinator that is lost. A former leader stays.
        """
        promoted = self.coordinators.promote(world.copy, current)
        left = tuple(call for call in self.strays.values[world.stray] if call.kind != "open")
        world = world._replace(copy=-1, stray=self.strays.number(left))
        return self._restarted(world, promoted, label, cost)

    def _forked(self, world: SmallWorld) -> bool:
        return self.coordinators.views[world.coordinator].output.fork is not None

    def _formerly(self, world: SmallWorld) -> list[Move]:
        """What a coordinator does that led before: it answers from memory, shows its instructions, and its threads
        continue at Kafka, until its first write is refused.

        The product answers nothing past its deadline. Here only the clients ignore what an earlier term says, once they
        know of a later one.
        """
        views = self.coordinators.views
        # the store counts no terms where there is no copy of it: each one is above all before
        outdated = self.ignored and (not self._claims or views[world.former].term < views[world.coordinator].term)
        moves = [Move(("former", "learns that another one leads"), self._stepped_down(world), 0, None)]
        moves += [
            self._formerly_answered(world, slot, turn)
            for slot in (0, 1)
            if not (outdated and world.aware >> slot & 1)
            for turn in self._turns_of(world.former, world[1 + slot])
            if turn.result.restarted < 0 or not self.fenced
        ]
        for done, number, kafka in self._locals_of(world.former_alone, world.kafka):
            after = world._replace(former_alone=number, kafka=kafka)
            moves.append(Move(("former", done.label), after, 0, done.violation or self._rightful(world, done)))
        return moves

    def _formerly_answered(self, world: SmallWorld, slot: int, turn: Turn) -> Move:
        """The former leader answers a driver. A stream to it shows what it wants, and breaks."""
        call, result, reported, violation = turn
        after = world._replace(former=result.after)
        if call.kind == "watch" and result.reply.verdict is not Verdict.FENCED:
            wanted = self.coordinators.views[result.after].wanted
            reported = self.drivers.number(instructed(self.drivers.values[world[1 + slot]], wanted))
        forked = self._forked(world)
        if violation is not None and result.violation is None and (forked or (self._claims and call.kind == "open")):
            # it does not know the newest claim, or drivers of the copy
            reported, violation = self.drivers.number(refused(self.drivers.values[world[1 + slot]], call)), None
        completed = self.coordinators.views[world.coordinator].output.completed >> call.checkpoint & 1
        if not forked and result.reply.decided and (result.reply.decided == "completed") != bool(completed):
            text = f"a former leader answers that checkpoint {call.checkpoint} is {result.reply.decided}"
            violation = violation or Violation(Invariant.ONE_DECISION, text)
        return Move(("former", slot, call), self._with(after, slot, reported), 0, violation)

    def _heard(self, before: SmallWorld, slot: int, after: SmallWorld) -> SmallWorld:
        """The world after the leader has answered a driver."""
        return after._replace(aware=before.aware | 1 << slot) if before.former >= 0 else after

    def _stepped_down(self, world: SmallWorld) -> SmallWorld:
        leader = world.coordinator
        first, second = (self._tell(one, leader, leader, -1, world.copy) for one in (world.first, world.second))
        return world._replace(first=first, second=second, former=-1, former_alone=self._gone, aware=0)

    def _requests(self, world: SmallWorld, faults: int) -> list[Move]:
        """A person asks the coordinator for something, or signals a driver to stop."""
        moves: list[Move] = []
        for call in REQUESTS:
            result = self.coordinators.call(world.coordinator, call)
            if result.restarted >= 0:
                after = self._after(world, result.after)
                moves.append(Move(("person", call), after, _REQUEST, result.violation))
        for slot in (0, 1):
            driver = self.drivers.values[world[1 + slot]]
            if driver.phase not in (Phase.ABSENT, Phase.OPENING, Phase.FENCED, Phase.GONE) and not driver.stopping:
                reported = self.drivers.number(driver._replace(stopping=1))
                after = self._after(world, world.coordinator, slot, reported)
                moves.append(Move(("driver", slot, "gets a signal to stop"), after, _REQUEST, None))
        return moves

    def _losses(self, world: SmallWorld) -> list[Move]:
        """The brokers abort a transaction on their own."""
        kafka = self.kafkas.values[world.kafka]
        moves: list[Move] = []
        for one in kafka.open:
            after = kafka.without((one,))._replace(lost=tuple(sorted({*kafka.lost, one})))
            which = (
                f"the transaction of checkpoint {one.checkpoint}"
                if one.checkpoint
                else "what tasks have begun to write"
            ) + (f" for {SINKS[one.sink]}" if self.bounds.sinks > 1 else "")
            label: Label = ("kafka", f"aborts {which} by itself")
            if one.sink == self.bounds.table:
                label = ("table", f"loses what is staged of checkpoint {one.checkpoint}")
            moves.append(Move(label, world._replace(kafka=self._kafka(after)), _LOSS, None))
        return moves

    def _at_table(self, world: SmallWorld) -> list[Move]:
        """A commit to the table arrives, or one of another program does. A request that never arrives is one that has
        not arrived yet."""
        kafka, moves = self.kafkas.values[world.kafka], list[Move]()
        for flight, after in tables.arrived(kafka, database=self.bounds.database):
            what = f"{'fence against' if flight.fence else 'commit of'} checkpoint {flight.transaction.checkpoint}"
            label: Label = ("table", f"gets the {what}, which generation {flight.generation} has sent")
            violation = None if flight.fence else self._comes_in(world, kafka, flight, after)
            answered = self._answered(world._replace(kafka=self._kafka(after)), flight)
            moves.append(Move(label, answered, 0, violation))
        if kafka.table.flights and not self.bounds.database:
            changed = world._replace(kafka=self._kafka(kafka._replace(table=kafka.table._replace(flights=()))))
            moves.append(Move(("table", "is changed by another program"), changed, 0, None))
        return moves

    def _answered(self, world: SmallWorld, flight: Flight) -> SmallWorld:
        """The world after the sender of a commit, if it still waits, has got the answer."""
        for slot in (0, 1):
            if (driver := self._heard_of(world[1 + slot], flight)) != world[1 + slot]:
                world = self._after(world, world.coordinator, slot, driver)
        return world._replace(alone=self._heard_of(world.alone, flight))

    def _heard_of(self, driver: int, flight: Flight) -> int:
        return self.drivers.number(heard(self.drivers.values[driver], flight))

    def _comes_in(self, world: SmallWorld, kafka: Kafka, flight: Flight, after: Kafka) -> Violation | None:
        """What is wrong with what a commit makes visible."""
        one = flight.transaction
        staged = next((each for each in kafka.open if tables.is_same(each, one)), None)
        if kafka.committed >> one.bit & 1 or staged is None:
            return Violation(Invariant.TILES, f"checkpoint {one.checkpoint} comes into the table again")
        if staged.first != kafka.visible(one.sink):
            text = f"record {staged.first} comes into the table after {kafka.visible(one.sink)} records"
            return Violation(Invariant.TILES, text)
        if self.bounds.database and kafka.claim[:2] != (flight.generation, flight.token):
            text = f"generation {flight.generation} commits checkpoint {one.checkpoint} under the {kafka.claim}"
            return Violation(Invariant.CLAIMED, text)
        return self._rightful(world, Local("", GONE, after, committed=one))

    def _stands_in(self, world: SmallWorld, faults: int) -> list[Move]:
        """What the coordinator does in place of a driver: it takes the job, or continues with one that it took."""
        view, moves = self.coordinators.views[world.coordinator], list[Move]()
        if world.alone == self._gone:
            left = self._left(world)
            if view.orphan or (view.alone and left):
                moves += self._taken(world, faults)
            return moves
        for done, number, kafka in self._locals_of(world.alone, world.kafka):
            cost = 0 if done.cost is None else 1 << done.cost
            if cost & ~faults:
                continue
            violation, number = self._judged(world, done, number)
            moves.append(Move(("alone", done.label), world._replace(alone=number, kafka=kafka), cost, violation))
        driver = self.drivers.values[world.alone]
        for call in calls(driver):
            result = self.coordinators.call(world.coordinator, call)
            reported = answered(driver, call, result.reply)
            violation = result.violation or (result.demand and self._demanded(result.demand, world))
            after = self._after(world, result.after)
            if isinstance(reported, Violation):
                violation = violation or reported
            else:
                after = after._replace(alone=self.drivers.number(reported))
            moves.append(Move(("alone", call), after, 0, violation))
            if result.restarted >= 0 and faults & _DEATH:
                label: Label = ("alone", call, "dies before it answers")
                moves += self._restarted(world, result.restarted, label, faults & _DEATH)
        return moves

    def _taken(self, world: SmallWorld, faults: int, *, beyond: bool = False) -> list[Move]:
        """The coordinator takes a job without a driver, unless the claim rules that out."""
        seen = self.kafkas.values[world.kafka].claim
        token = (IN_PLACE_ON_COPY if self._forked(world) else IN_PLACE) if self._claims else 0
        take = Call("take", 0, seen=seen, token=token)
        result = self.coordinators.call(world.coordinator, take)
        refused = result.reply.verdict is Verdict.REFUSED and self._forked(world)
        if refused or (self._beyond(result) and not beyond):
            return []
        label: Label = ("alone", take)
        after = self._after(world, result.after)
        holder = self.coordinators.views[result.after].output.holder
        reported = standing_in(self._absent(0), result.reply, (holder, seen) if self._claims else None)
        if isinstance(reported, Violation):
            return [Move(label, after, 0, result.violation or reported)]
        moves = [Move(label, after._replace(alone=self.drivers.number(reported)), 0, result.violation)]
        if result.restarted >= 0 and faults & _DEATH:
            moves += self._restarted(world, result.restarted, (*label, "dies before it answers"), faults & _DEATH)
        return moves

    def _crashes(self, world: SmallWorld) -> list[Move]:
        """A driver dies at any point; what it has sent may still arrive."""
        view, moves = self.coordinators.views[world.coordinator], list[Move]()
        for slot in (0, 1):
            driver = self.drivers.values[world[1 + slot]]
            if driver.phase is Phase.ABSENT and driver.claims:
                continue  # as one that never starts
            if driver.phase in (Phase.ABSENT, Phase.OPENING) or (
                self._owns(view, driver) and driver.phase is not Phase.GONE
            ):
                after = self._after(world, world.coordinator, slot, self._gone, None, left_behind(driver))
                moves.append(Move(("driver dies", slot), after, _CRASH, None))
        return moves

    def _breaks(self, world: SmallWorld) -> list[Move]:
        """The stream breaks: instructions in flight are lost, and the driver opens it again."""
        moves: list[Move] = []
        for slot in (0, 1):
            driver = self.drivers.values[world[1 + slot]]
            if driver.stream is Stream.OPEN:
                cut = self.drivers.number(overlooked(driver)._replace(stream=Stream.WANTED))
                moves.append(
                    Move(("stream breaks", slot), self._after(world, world.coordinator, slot, cut), _MESSAGE, None)
                )
        return moves

    # -- the schedule without further faults

    def fair(self, world: SmallWorld) -> Move | None:
        """The next move of a schedule without faults: everything in flight arrives, and every process does what is due.

        None when nothing is left to do. A job without a driver is started again, beyond the bound of generations.
        """
        view = self.coordinators.views[world.coordinator]
        if world.former >= 0:
            return self._formerly(world)[0]
        if world.copy >= 0:
            return Move(("copy", "is thrown away"), self._without_copy(world), 0, None)
        for call in self.strays.values[world.stray]:
            for move in self._strayed(world, call, 0):
                return move
        for move in self._at_table(world):
            return move
        if world.alone != self._gone:
            return self._stands_in(world, 0)[0]
        owner = -1
        for slot in (0, 1):
            driver = self.drivers.values[world[1 + slot]]
            if driver.phase in (Phase.ABSENT, Phase.GONE):
                continue
            if driver.phase is not Phase.OPENING and not (view.owned and self._owns(view, driver)):
                return Move(("driver", slot, "hears that it is fenced"), self._with(world, slot, self._gone), 0, None)
            if driver.phase is Phase.FENCED and not self._alone(world, slot, 0) and not calls(driver):
                return Move(("driver", slot, "ends"), self._with(world, slot, self._gone), 0, None)
            owner = slot
            for turn in self._turns_of(world.coordinator, world[1 + slot], beyond=True):
                return self._delivered(world, slot, turn, 0)[0]
            for move in self._alone(world, slot, 0):
                return move
        if owner >= 0:
            return self._undone(world, owner) or self._unanswered(world, owner)
        if view.stream:
            return self._clock(world, Call("lost", view.generation))[0]
        if self.bounds.alone and not self._refused(world) and (abandoned := self._abandoned(world)) is not None:
            return abandoned
        slot, token = (1 if world.second == self._gone else 0), 10 + view.generation
        if self._refused(world):
            return None
        number = self.drivers.number(self._opening(world, token))
        return Move(("start", slot, token), self._with(world, slot, number), 0, None)

    def _abandoned(self, world: SmallWorld) -> Move | None:
        """No driver comes: the coordinator acts in place of one, until nothing is left open."""
        view = self.coordinators.views[world.coordinator]
        if view.lapses:
            return self._clock(world, Call("lease", 0))[0]
        if not self._left(world):
            return None
        if view.orphan or view.alone:
            return next(iter(self._taken(world, 0, beyond=True)), None)
        if not view.generation:
            return None
        output, still = view.output, self.kafkas.values[world.kafka].open
        text = f"what a driver has left stays open: {still}, checkpoint {output.last} settled: {output.settled}"
        return Move(("alone", "has nothing to do"), world, 0, Violation(Invariant.ALONE, text))

    def _opening(self, world: SmallWorld, token: int) -> Driver:
        """A driver that is started now, and has read the claim."""
        seen = self.kafkas.values[world.kafka].claim
        return self._absent(token)._replace(phase=Phase.OPENING, seen=seen)

    def _refused(self, world: SmallWorld) -> bool:
        """True when this copy of the store must not run the job, according to the claim: a person has to act."""
        if not self._forked(world):
            return False
        (call,) = calls(self._opening(world, 99))
        return self.coordinators.call(world.coordinator, call).reply.verdict is Verdict.REFUSED

    def _without_copy(self, world: SmallWorld) -> SmallWorld:
        """The copy is never promoted."""
        leader = world.coordinator
        first, second = (self._tell(one, leader, leader, -1, -1) for one in (world.first, world.second))
        return world._replace(first=first, second=second, stray=self._keep(world.stray, leader, -1), copy=-1)

    def _unanswered(self, world: SmallWorld, slot: int) -> Move | None:
        """A copy of the store asks for what its driver has long since given up: in the end it asks no more, or a person
        starts the driver again."""
        view = self.coordinators.views[world.coordinator]
        if view.output.fork is None:
            return None
        due = [kind for kind, waits in (("expire", view.unanswered), ("overdue", view.owes)) if waits]
        for kind in due:
            for move in self._clock(world, Call(kind, 0)):
                return move
        if self._strict or (view.output.settled and not self.kafkas.values[world.kafka].open):
            return None
        return Move(("driver", slot, "is stopped by a person"), self._with(world, slot, self._gone), 0, None)

    def _undone(self, world: SmallWorld, slot: int) -> Move | None:
        """A trigger after the last one of this world shows the driver which checkpoint was undone."""
        view, driver = self.coordinators.views[world.coordinator], self.drivers.values[world[1 + slot]]
        if not view.goes_on or view.undecided or driver.answered <= view.output.last:
            return None
        reported = self.drivers.number(driver._replace(phase=Phase.ABANDONING, call=driver.answered))
        label: Label = ("driver", slot, f"hears of a later checkpoint that builds on {view.output.last}")
        return Move(label, self._with(world, slot, reported), 0, None)

    def unfinished(self, world: SmallWorld) -> Violation | None:
        """What is wrong with a world in which nothing is left to do."""
        output = self.coordinators.views[world.coordinator].output
        kafka = self.kafkas.values[world.kafka]
        if self._refused(world):
            return None  # the output was checked at each commit
        if not output.settled:
            return Violation(Invariant.SETTLED, f"checkpoint {output.last} is completed and never settled")
        drivers = (self.drivers.values[number] for number in (world.first, world.second))
        written_ahead = {Transaction(0, driver.generation, driver.ahead, 0) for driver in drivers if driver.ahead}
        for one in kafka.open:
            if one not in written_ahead:
                return Violation(
                    Invariant.SETTLED, f"the transaction of checkpoint {one.checkpoint} stays open for ever"
                )
        for sink in range(self.bounds.sinks):
            if kafka.visible(sink) != max(output.end, 0):
                text = f"{kafka.visible(sink)} records are visible, {output.end} are in completed checkpoints"
                return Violation(Invariant.TILES, text)
        if output.undecided:
            return Violation(Invariant.SETTLED, f"checkpoint {output.undecided} stays undecided for ever")
        return None

    # -- parts

    def _kafka(self, kafka: Kafka) -> int:
        return self.kafkas.number(tables.refused(kafka) if self.bounds.database else kafka)

    def _beyond(self, result: Result) -> bool:
        return self.coordinators.views[result.after].generation > self.bounds.generations

    def _with(self, world: SmallWorld, slot: int, driver: int) -> SmallWorld:
        return world._replace(first=driver) if slot == 0 else world._replace(second=driver)

    def _turns_of(self, coordinator: int, driver: int, *, beyond: bool = False) -> tuple[Turn, ...]:
        """The driver's calls with their results. Those beyond the bound of generations are included only with
        ``beyond``."""
        key = (coordinator, driver, beyond)
        found = self._turns.get(key)
        if found is None:
            d, turns = self.drivers.values[driver], list[Turn]()
            for call in calls(d):
                result = self.coordinators.call(coordinator, call)
                if beyond or not self._beyond(result):
                    reported = answered(d, call, result.reply)
                    wrong = None
                    if isinstance(reported, Violation):
                        reported, wrong = self._excused(coordinator, d, call, result, reported)
                    turns.append(Turn(call, result, self.drivers.number(reported), result.violation or wrong))
            found = self._turns[key] = tuple(turns)
        return found

    def _excused(
        self, coordinator: int, driver: Driver, call: Call, result: Result, wrong: Violation
    ) -> tuple[Driver, Violation | None]:
        """What a refusal does to a driver: an older copy of the store may refuse, and what the claim rules out."""
        output = self.coordinators.views[coordinator].output
        if output.fork is None or (call.kind == "open" and output.knows(call.seen)):
            return driver, wrong
        return refused(driver, call), None

    def _owns(self, view: View, driver: Driver) -> bool:
        """True when the driver's generation is the newest that the coordinator knows."""
        return driver.generation == view.generation and (not driver.claims or view.output.holder == driver.token)

    def _locals_of(self, driver: int, kafka: int) -> tuple[tuple[Local, int, int], ...]:
        found = self._locals.get((driver, kafka))
        if found is None:
            found = self._locals[driver, kafka] = tuple(
                (move, self.drivers.number(move.driver), self._kafka(move.kafka))
                for move in local(self.drivers.values[driver], self.kafkas.values[kafka])
            )
        return found

    def _demanded(self, demand: Demand, world: SmallWorld) -> Violation | None:
        kafka = self.kafkas.values[world.kafka]
        if not all(kafka.committed >> bit & 1 for bit in demand.committed):
            return Violation(Invariant.SETTLED, "a checkpoint counts as settled, and its transaction is not committed")
        visible = kafka.visible()
        if demand.ended is not None and demand.ended[0] == kafka.claim.token and demand.ended[1] != visible:
            text = f"the job has ended after {demand.ended[1]} records, {visible} are visible"
            return Violation(Invariant.TILES, text)
        output = self.coordinators.views[world.coordinator].output
        forked = output.fork is not None
        if (one := demand.lost) is not None and one not in kafka.lost:
            ended = one not in kafka.open and not kafka.committed >> one.bit & 1
            if not (forked and ended):  # a driver aborted it before the copy completed it
                text = f"checkpoint {one.checkpoint} is to be written again, and its transaction was not lost"
                return Violation(Invariant.TILES, text)
        for one in demand.open:
            if one in kafka.open or one in kafka.lost:
                continue
            both = forked and kafka.committed >> one.bit & 1  # the lost store had completed it too
            if not both and output.knows(kafka.claim) and (self._strict or not forked):
                text = f"checkpoint {one.checkpoint} is completed, its transaction is not open any more"
                return Violation(Invariant.TILES, text)
        return None

    def _rightful(self, world: SmallWorld, move: Local) -> Violation | None:
        """Check that commits follow a durable decision and aborts never contradict one."""
        output = self.coordinators.views[world.coordinator].output
        if move.replayed and move.driver.generation == output.generation and output.undecided > move.replayed:
            text = f"checkpoint {move.replayed} is written again, and {output.undecided} is not aborted"
            return Violation(Invariant.IN_ORDER, text)
        decided = output.decided | (output.fork.lost if output.fork is not None else 0)
        if (one := move.committed) is not None and not decided >> one.bit & 1:
            text = f"the transaction of checkpoint {one.checkpoint} is committed before the decision is durable"
            return Violation(Invariant.ONE_DECISION, text)
        if not self._claims:
            return self._keeps_decided(output, move)
        claim = self.kafkas.values[world.kafka].claim
        return (
            self._one_output(output, move)
            or (self._claimed(claim, move) if self._strict else None)
            or (self._keeps_decided(output, move) if output.knows(claim) and self._aborts_count(output) else None)
            or (self._keeps_claimed(output, claim, move) if self._aborts_count(output) else None)
        )

    def _aborts_count(self, output: Output) -> bool:
        """False once a copy is promoted that may lack an abort: it completes what its driver aborts."""
        return self._strict or output.fork is None

    def _keeps_decided(self, output: Output, move: Local) -> Violation | None:
        for one in move.aborted:
            if tables.is_committing(move.kafka, one):
                text = f"checkpoint {one.checkpoint} is aborted, and a commit of it may still arrive"
                return Violation(Invariant.NEVER_CHANGES, text)
            handle = output.handle_of(one.sink)[:2]
            counts = (one.generation, one.amendment) == handle if one.checkpoint == output.last else not one.amendment
            if output.decided >> one.bit & 1 and counts:
                text = f"checkpoint {one.checkpoint} is completed, its transaction is aborted"
                return Violation(Invariant.NEVER_CHANGES, text)
        return None

    def _keeps_claimed(self, output: Output, claim: Claim, move: Local) -> Violation | None:
        """Check that what the claim has taken from this copy of the store stays for the newest one."""
        for one in move.aborted if not output.knows(claim) else ():
            if output.only_lost >> one.bit & 1 and one.checkpoint <= claim.completed:
                text = f"checkpoint {one.checkpoint} is completed and claimed, its transaction is aborted"
                return Violation(Invariant.NEVER_CHANGES, text)
        return None

    def _one_output(self, output: Output, move: Local) -> Violation | None:
        """Check that of two stores one at most continues the output."""
        visible = move.kafka.committed
        if move.committed is not None and visible & output.only_here and visible & output.only_lost:
            text = "what only the lost store has completed is visible, and what only its older copy has completed"
            return Violation(Invariant.TILES, text)
        return None

    def _claimed(self, claim: Claim, move: Local) -> Violation | None:
        """Check that the claim names what is committed, and never goes back."""
        after = move.kafka.claim
        if after.generation < claim.generation or after.completed < claim.completed:
            return Violation(Invariant.CLAIMED, f"{after} takes the place of {claim}")
        if move.committed is not None and claim.completed < move.committed.checkpoint:
            text = f"checkpoint {move.committed.checkpoint} is committed, the claim names {claim.completed}"
            return Violation(Invariant.CLAIMED, text)
        return None

    def _after(
        self,
        world: SmallWorld,
        coordinator: int,
        slot: int = -1,
        driver: int = 0,
        call: Call | None = None,
        strayed: tuple[Call, ...] = (),
    ) -> SmallWorld:
        """The world with another coordinator and driver: instructions are sent, and what cannot matter any more is
        dropped."""
        before, first, second, stray, former = world.coordinator, world.first, world.second, world.stray, world.former
        copy = world.copy
        if strayed:
            stray = self.strays.number(tuple(sorted((*self.strays.values[stray], *strayed))))
        if stray:
            stray = self._keep(stray, coordinator, copy)
        if slot == 0:
            first = driver
        elif slot == 1:
            second = driver
        new = call is not None and call.kind == "watch"
        if coordinator != before or slot == 0:
            first = self._tell(first, -1 if new and slot == 0 else before, coordinator, former, copy)
        if coordinator != before or slot == 1:
            second = self._tell(second, -1 if new and slot == 1 else before, coordinator, former, copy)
        return world._replace(coordinator=coordinator, first=first, second=second, stray=stray)

    def _tell(self, driver: int, before: int, after: int, former: int, copy: int) -> int:
        """Send what is wanted now and was not sent before (``before`` = -1: a new stream, nothing was sent)."""
        key = (driver, before, after, former, copy)
        found = self._reported.get(key)
        if found is None:
            d, view = self.drivers.values[driver], self.coordinators.views[after]
            if d.stream is Stream.OPEN and view.owned and self._owns(view, d):
                shown = self.coordinators.views[before].wanted if before >= 0 else ()
                d = instructed(d, tuple(one for one in view.wanted if one not in shown))
            found = self._reported[key] = self.drivers.number(self._reduced(d, view, former, copy))
        return found

    def _reduced(self, driver: Driver, view: View, former: int, copy: int) -> Driver:
        """Reduce a fenced driver, unless a former leader still takes it for the owner of the job, or a copy would."""
        if copy >= 0 and not over_for_good(driver, self.coordinators.views[copy]):
            return driver
        if former >= 0:
            outdated = self.coordinators.views[former]
            if outdated.owned and outdated.generation == driver.generation:
                return driver
        return cut_off(driver, view)

    def _keep(self, stray: int, coordinator: int, copy: int) -> int:
        key = (stray, coordinator, copy)
        found = self._kept.get(key)
        if found is None:
            views = [self.coordinators.views[one] for one in (coordinator, copy) if one >= 0]
            kept = tuple(
                call
                for call in self.strays.values[stray]
                if not all(useless(call, view, self.bounds.generations) for view in views)
            )
            found = self._kept[key] = self.strays.number(kept)
        return found

    def _cut_off(self, driver: int, coordinator: int, former: int, copy: int) -> tuple[int, int]:
        """The driver after a restart of its coordinator, with and without the instructions in flight."""
        key = (driver, coordinator, former, copy)
        found = self._missed.get(key)
        if found is None:
            d, view = self.drivers.values[driver], self.coordinators.views[coordinator]
            missed = overlooked(d) if d.stream is Stream.OPEN else d
            stream = Stream.NONE if d.stream is Stream.NONE else Stream.WANTED
            found = self._missed[key] = (
                self.drivers.number(self._reduced(d._replace(stream=stream), view, former, copy)),
                self.drivers.number(self._reduced(missed._replace(stream=stream), view, former, copy)),
            )
        return found
