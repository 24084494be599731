"""A driver that keeps the contract (docs/protocol.md, driver/generation.py), as pure functions.

Its threads block in their calls, so it takes an answer at the moment it is given: the thread could not have moved
before, and its next call may stay in flight for any time. Its steps at Kafka are separate moves. Two groups of steps
are one move each. The first is aborting its own undone checkpoint, writing the next transaction and sweeping: these
touch only what no other process may touch, or abort what any process may abort at any time. The second is a commit and
sending its report; of a table, it is the look and sending the commit, and the arrival is a move of its own. With a
claim, reading it, taking it and renewing it are moves of their own.
"""

from typing import NamedTuple

from onceward.protocol.answers import Verdict
from onceward.protocol.values import Outcome
from tests.explorer import tables
from tests.explorer.coordinator import Reply, View
from tests.explorer.world import (
    NO_CLAIM,
    SINKS,
    Call,
    Claim,
    Driver,
    Fault,
    Flight,
    Kafka,
    Phase,
    Stream,
    Transaction,
)
from tests.support.oracle import Invariant, Violation

__all__ = [
    "GONE",
    "Local",
    "answered",
    "calls",
    "cut_off",
    "heard",
    "instructed",
    "left_behind",
    "local",
    "over_for_good",
    "overlooked",
    "refused",
    "standing_in",
]

GONE = Driver(phase=Phase.GONE)

_ACKNOWLEDGING = (Phase.ACKNOWLEDGING_SOURCE, Phase.ACKNOWLEDGING_SINK, Phase.ACKNOWLEDGING_OTHER)
_BUSY = (*_ACKNOWLEDGING, Phase.DECLINING, Phase.REFUSING, Phase.AMENDING)
_NAMING = ("trigger", "trigger at once", "abort", "complete", "replay", "replay other")
"""Instructions that name the newest completed checkpoint."""
_WORKING = (Phase.SETTLING, Phase.IDLE, *_BUSY, Phase.ABANDONING, Phase.FENCED)


class Local(NamedTuple):
    """One move of a driver without the coordinator."""

    label: str
    driver: Driver
    kafka: Kafka
    cost: Fault | None = None
    sent: tuple[Call, ...] = ()
    """Calls whose answers it does not wait for."""
    committed: Transaction | None = None
    """What it asked Kafka, or a table, to commit."""
    aborted: tuple[Transaction, ...] = ()
    """Open transactions that it aborted."""
    violation: Violation | None = None
    failed: Driver | None = None
    """The driver instead, if an older copy of the store may have led to ``violation``: it fails, and leaves."""
    replayed: int = 0
    """The checkpoint of which it wrote records again."""


def calls(driver: Driver) -> tuple[Call, ...]:
    """Calls in flight whose answers a thread of the driver waits for."""
    d, found = driver, []
    match d.phase:
        case Phase.ABSENT if d.claims:
            pass
        case Phase.ABSENT | Phase.OPENING:
            found.append(Call("open", d.token, base=d.call, seen=d.seen))
        case Phase.ACKNOWLEDGING_SOURCE:
            idle = d.base != 0 and d.answer == d.at
            found.append(Call("ack", d.generation, d.call, "source", d.base, d.answer, unchanged=idle))
        case Phase.ACKNOWLEDGING_SINK | Phase.ACKNOWLEDGING_OTHER:
            idle = d.base != 0 and d.answer == d.at
            data = d.base != 0 and not idle
            who = "sink" if d.phase is Phase.ACKNOWLEDGING_SINK else "other"
            found.append(Call("ack", d.generation, d.call, who, d.base, data=data, unchanged=idle))
        case Phase.LEAVING:
            found.append(_close(d, "cancelled" if d.stopping > 1 else "stopped"))
        case Phase.DECLINING | Phase.REFUSING:
            found.append(Call("decline", d.generation, d.call))
        case Phase.AMENDING:
            written = (d.other if d.replay_by else d.handle)[2]
            found.append(Call("amend", d.generation, d.call, base=written - 1, sink=d.replay_by))
        case _:
            pass
    if d.report:
        found.append(Call("settle", d.generation, d.report, d.outcome, d.report_of, sink=d.turn))
    if d.stream is Stream.WANTED:
        found.append(Call("watch", d.generation))
    if d.claims and d.phase is not Phase.STANDING_IN:
        return tuple([call if call.kind == "open" else call._replace(token=d.token) for call in found])
    return tuple(found)


def _close(d: Driver, who: str) -> Call:
    return Call("close", d.generation, who=who, token=d.token if d.claims else 0, knows=d.knows)


def left_behind(driver: Driver) -> tuple[Call, ...]:
    """Calls that may still arrive when no thread waits for them.

    Excludes ``watch``: a stream ends with its connection. A stream that is served to a driver that is gone is covered
    by the call arriving before the driver dies or the stream breaks, while the coordinator has not noticed.
    """
    return tuple(call for call in calls(driver) if call.kind != "watch")


def answered(driver: Driver, call: Call, reply: Reply) -> Driver | Violation:
    """The driver after the answer to one of its calls."""
    d, verdict = driver, reply.verdict
    if verdict is Verdict.FENCED and d.phase is Phase.STANDING_IN:
        return d._replace(report=0) if d.abort else GONE
    if verdict is Verdict.FENCED:
        d = d._replace(phase=Phase.FENCED, call=0, stream=Stream.NONE, report=0, report_of=0, outcome="")
        return d if not d.claims or _may_commit(d) else GONE
    fine = verdict in (Verdict.ACCEPTED, Verdict.DUPLICATE)
    late = verdict in (Verdict.TOO_LATE, Verdict.EXPIRED)
    match call.kind:
        case "open" if fine:
            base = reply.base
            return d._replace(
                phase=Phase.CLAIMING if d.claims else Phase.SWEEPING,
                call=0,
                generation=reply.generation,
                base=base,
                at=reply.at,
                work=0 if reply.settled else 1 << base,
                handle=(0, 0, 0, 0) if reply.settled else (base, *reply.handle),
                other=(0, 0, 0, 0) if reply.settled or d.sinks == 1 else (base, *reply.other),
                lost=base if reply.lost else 0,
                lost_by=reply.lost if d.sinks > 1 else 0,
                newest=base if d.claims else 0,
                knows=base if d.claims else 0,
            )
        case "open" if verdict is Verdict.BUSY and d.token > 1 and call.base != reply.generation:
            return d._replace(phase=Phase.OPENING, call=reply.generation)
        case "open" if verdict is Verdict.BUSY:
            return GONE  # it gives up after a while; a retry that succeeds is covered by this call arriving later
        case "close" if fine:
            return GONE
        case "watch" if fine:
            return d._replace(stream=Stream.OPEN)
        case "amend" if fine:
            complete = 0 if d.lost_by else call.checkpoint  # the other one has to be written again first
            return d._replace(phase=Phase.IDLE, call=0, complete=complete)
        case "decline" if d.phase is Phase.REFUSING and (fine or late):
            # accepted: an older copy of the store has issued the id again; else the trigger was only late
            return d._replace(phase=Phase.IDLE, call=0, over=d.over or verdict is Verdict.ACCEPTED)
        case "decline" if fine or late:
            return d._replace(phase=Phase.ABANDONING)
        case "ack" if fine or (late and reply.decided == "completed"):
            if d.phase is Phase.ACKNOWLEDGING_SOURCE:
                return d._replace(phase=Phase.ACKNOWLEDGING_SINK)
            if d.phase is Phase.ACKNOWLEDGING_SINK and d.sinks > 1:
                return d._replace(phase=Phase.ACKNOWLEDGING_OTHER)
            again = _without_word_against(d)
            if again != d:  # of a former leader or of this one: who takes the acknowledgement decides
                return again._replace(phase=Phase.ACKNOWLEDGING_SOURCE)
            return d._replace(phase=Phase.IDLE, call=0)
        case "ack" if late and reply.decided == "aborted":
            return d._replace(phase=Phase.ABANDONING)
        case "settle" if d.phase is Phase.STANDING_IN and (fine or verdict is Verdict.TOO_LATE):
            d = d._replace(report=0, report_of=0, outcome="")
            if d.turn + 1 < d.sinks:
                return d._replace(turn=d.turn + 1, complete=call.checkpoint)
            return d if d.abort else GONE
        case "settle" if d.sinks > 1 and (fine or verdict is Verdict.TOO_LATE):
            return _reported(d, call)
        case "settle" if call.who == "lost" and (fine or verdict is Verdict.TOO_LATE):
            d = d._replace(report=0, report_of=0, outcome="")
            if _handle(d, call.checkpoint)[1] == call.base:  # otherwise it is already written again
                d = d._replace(lost=call.checkpoint)
            return d._replace(phase=Phase.IDLE, stream=Stream.WANTED) if d.phase is Phase.SETTLING else d
        case "settle" if call.who == "doubt" and fine:
            return d._replace(
                phase=Phase.IDLE, report=0, report_of=0, outcome="", over=True
            )  # the main thread gets the request to leave
        case "settle" if fine or verdict is Verdict.TOO_LATE:
            d = d._replace(
                report=0, report_of=0, settled=max(d.settled, call.checkpoint), work=d.work & ~(1 << call.checkpoint)
            )
            if d.phase is Phase.SETTLING:
                d = d._replace(phase=Phase.IDLE, stream=Stream.WANTED)
            return d
        case _:
            decided = f" ({reply.decided})" if reply.decided else ""
            return Violation(Invariant.CONTRACT, f"{call} is answered {verdict.value}{decided}")


def _reported(d: Driver, call: Call) -> Driver:
    """A driver with two sinks after it has reported the outcome of one."""
    d = d._replace(report=0, report_of=0, outcome="", doubt=call.checkpoint if call.who == "doubt" else d.doubt)
    if _amendment(d, call.checkpoint) != call.base:  # a sink was written again since: all is reported again
        return d._replace(turn=0)
    if call.who == "lost":
        d = d._replace(lost=call.checkpoint, lost_by=d.lost_by | 1 << call.sink)
    if d.turn + 1 < d.sinks and d.complete <= call.checkpoint:  # an order for a later one shows that this is settled
        return d._replace(turn=d.turn + 1, complete=call.checkpoint)
    d = d._replace(turn=0)
    if d.phase is Phase.SETTLING:
        d = d._replace(phase=Phase.IDLE, stream=Stream.WANTED)
    if d.doubt == call.checkpoint:
        return d._replace(over=True)  # the main thread gets the request to leave
    if d.lost == call.checkpoint:
        return d
    return d._replace(settled=max(d.settled, call.checkpoint), work=d.work & ~(1 << call.checkpoint))


def _without_word_against(d: Driver) -> Driver:
    """The driver without the instructions that say that the checkpoint of its call has come to nothing."""
    if not d.work >> d.call & 1:
        return d
    if d.trigger_base < d.call < d.trigger:
        d = d._replace(trigger=0, trigger_base=0)
    return d._replace(abort=0) if d.abort == d.call else d


def refused(driver: Driver, call: Call) -> Driver:
    """The driver after a coordinator with an older copy of the store has refused one of its calls: its generation
    fails, and leaves."""
    d = driver
    match call.kind:
        case "open":
            return GONE
        case "decline" if d.phase is Phase.DECLINING:
            return d._replace(phase=Phase.ABANDONING)  # it does not read the answer
        case "settle":
            phase = Phase.IDLE if d.phase is Phase.SETTLING else d.phase
            return d._replace(phase=phase, report=0, report_of=0, outcome="", over=True)
        case _:
            return d._replace(phase=Phase.IDLE, call=0, over=True)


def standing_in(absent: Driver, reply: Reply, claim: tuple[int, Claim] | None = None) -> Driver | Violation:
    """The coordinator after its core granted it a job without a driver: one thread sweeps and one commits.

    ``absent``: a driver of this world. ``claim``: the coordinator's token, and the claim that it has seen, which it
    takes first. Where there is none, it takes none.

    Both continue if a driver opens the job meanwhile. A restart ends them, and the coordinator takes the job again.
    """
    if reply.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE):
        return Violation(Invariant.CONTRACT, f"the coordinator asks for an orphan and gets {reply.verdict.value}")
    base = 0 if reply.settled else reply.base
    all_lost = reply.lost == (1 << absent.sinks) - 1
    return absent._replace(
        phase=Phase.STANDING_IN,
        generation=reply.generation,
        base=reply.base,
        abort=1,
        complete=0 if all_lost else base,
        work=1 << base if base else 0,
        handle=(base, *reply.handle) if base else (0, 0, 0, 0),
        other=(base, *reply.other) if base and absent.sinks > 1 else (0, 0, 0, 0),
        lost=base if reply.lost else 0,
        lost_by=reply.lost if absent.sinks > 1 else 0,
        claims=claim is not None,
        token=claim[0] if claim is not None else 0,
        seen=claim[1] if claim is not None else NO_CLAIM,
        claimed=reply.base if claim is not None else 0,
    )


def instructed(driver: Driver, wanted: tuple[tuple[str, int, int], ...]) -> Driver:
    """The driver after these instructions were sent; the newest of each kind counts."""
    d = driver
    for kind, checkpoint, base in wanted:
        if d.claims and kind in _NAMING:
            named = checkpoint if kind in ("complete", "replay", "replay other") else base
            if is_older(d, named):
                d = d._replace(over=True, halted=True)
                continue
            d = d._replace(newest=named)
        match kind:
            case "trigger" | "trigger at once":
                d = d._replace(trigger=checkpoint, trigger_base=base)
            case "complete":
                if _amendment(d, checkpoint) == base:  # otherwise it is for an earlier amendment
                    d = d._replace(complete=checkpoint, turn=d.turn if d.report else 0)
            case "replay" | "replay other" if d.phase is not Phase.AMENDING or d.sinks == 1:
                d = d._replace(replay=checkpoint, replay_of=base, replay_by=int(kind == "replay other"))
            case "abort":
                if d.trigger and d.trigger <= checkpoint:
                    d = d._replace(trigger=0, trigger_base=0)
                if base < d.answered <= checkpoint:  # otherwise there is nothing to abandon
                    d = d._replace(abort=d.answered)
            case "stop":
                d = d._replace(stopping=max(d.stopping, 1))
            case "cancel":
                d = d._replace(stopping=2)
            case _:
                d = d._replace(over=True)
    return d


def is_older(driver: Driver, named: int) -> bool:
    """True when an instruction names an older completed checkpoint than the driver knows: it halts."""
    return named < driver.newest


def overlooked(driver: Driver) -> Driver:
    """The driver after all instructions in flight are lost."""
    lost = driver._replace(trigger=0, trigger_base=0, abort=0, over=False, replay=0, replay_of=0)
    if not driver.waits:
        lost = lost._replace(complete=0)
    return lost._replace(newest=driver.knows, halted=False) if driver.claims else lost


def over_for_good(driver: Driver, view: View) -> bool:
    """True when neither this coordinator nor one that follows it on its store takes the driver for the job's owner.

    An older copy of the store may still grant the driver's generation, even to this driver.
    """
    if driver.claims and driver.generation >= view.generation:
        return driver.generation == view.generation and not view.owned_by(driver.generation, driver.token)
    return not (view.owned and driver.generation == view.generation)


def cut_off(driver: Driver, view: View) -> Driver:
    """The driver as it counts in a world with this coordinator: a fenced one is reduced to what it may still do.

    Its calls would be answered with FENCED and change nothing (checked for every coordinator, see ``probes``), and its
    main thread would end. So they count as answered at once; only what it can still do at Kafka is kept.
    """
    d = driver
    if d.phase in (Phase.ABSENT, Phase.OPENING, Phase.GONE) or not over_for_good(d, view):
        return d
    if d.phase is Phase.LEAVING:
        return GONE
    if d.phase in _BUSY:
        d = d._replace(phase=Phase.FENCED, call=0)
    d = d._replace(stream=Stream.NONE, report=0, report_of=0, outcome="", over=False, halted=False)
    may_write = d.phase is Phase.IDLE and (d.trigger > d.last_run or d.abort or d.replay)
    if _may_commit(d) or may_write or d.phase in (Phase.CLAIMING, Phase.SWEEPING, Phase.ABANDONING):
        return d
    return GONE


def _may_commit(d: Driver) -> bool:
    return bool(d.phase in _WORKING and d.complete and d.work >> d.complete & 1)


def local(driver: Driver, kafka: Kafka) -> tuple[Local, ...]:
    """All moves of the driver without the coordinator; the first one is its move without faults."""
    d, moves = driver, list[Local]()
    again = d.report == d.complete and d.report_of == _amendment(d, d.complete) and not d.turn
    if d.complete and d.phase in _WORKING and (not d.report or again):
        moves.append(_commit(d, kafka))
        if not d.report and d.work >> d.complete & 1 and not _has_lost(d, d.complete):
            of = _amendment(d, d.complete)
            doubtful = d._replace(report=d.complete, report_of=of, complete=0, outcome="doubt", waits=False)
            moves.append(Local(f"cannot prove the outcome of checkpoint {d.complete}", doubtful, kafka, Fault.LOSS))
    if d.waits and tables.under_way(kafka, d):
        moves.append(_without_answer(d, kafka))
    match d.phase:
        case Phase.STANDING_IN:
            return _alone(d, kafka)
        case Phase.ABSENT if d.claims:
            moves.append(Local("reads the claim", d._replace(phase=Phase.OPENING, seen=kafka.claim), kafka))
        case Phase.CLAIMING:
            moves.append(_take(d, kafka))
        case Phase.SWEEPING:
            moves.append(_recover(d, kafka))
        case Phase.ABANDONING:
            done = d._replace(phase=Phase.IDLE, call=0)
            moves.append(_abandon(f"aborts checkpoint {d.call}", done, kafka, d.call))
        case Phase.IDLE if d.over:
            moves.append(_leave(d, kafka, "halted" if d.halted else "restarting"))
        case Phase.IDLE:
            if d.stopping and not d.work:
                ended, left = _without_tasks(d, kafka)
                moves.append(Local("has stopped", ended._replace(phase=Phase.LEAVING, stream=Stream.NONE), left))
            if d.abort:
                label = f"takes the abort of checkpoint {d.abort}"
                moves.append(_abandon(label, d._replace(abort=0), kafka, d.abort))
                moves.append(_abandon(f"{label}, which is doubled", d, kafka, d.abort)._replace(cost=Fault.MESSAGE))
            if d.replay and not d.abort:
                moves.append(_replay(d, kafka))
            if d.trigger and not d.replay:
                moves += _triggers(d, kafka)
            if not d.abort and not d.trigger and not d.replay:
                swept = _sweep(d, kafka, tasks_stay=True)
                if swept.kafka != kafka or swept.driver != d:
                    moves.append(swept._replace(label="sweeps"))
        case _:
            pass
    if d.phase in (Phase.CLAIMING, Phase.SWEEPING, Phase.SETTLING, Phase.IDLE) and not d.over:
        failing = _leave(d, kafka, "failed")
        moves.append(failing._replace(label="fails: sweeps and leaves", cost=Fault.CRASH))
    return tuple(move for move in moves if (move.driver, move.kafka, move.sent) != (driver, kafka, ()))


def _alone(d: Driver, kafka: Kafka) -> tuple[Local, ...]:
    moves: list[Local] = []
    if d.seen != NO_CLAIM:
        return (_take_in_place(d, kafka),)
    if d.waits and tables.under_way(kafka, d):
        moves.append(_without_answer(d, kafka))
    elif d.complete:
        moves.append(_commit(d, kafka))
    if d.abort:
        swept = _sweep(d, kafka)
        moves.append(swept._replace(driver=d._replace(abort=0)))
    return tuple(_rested(move) for move in moves)


def _rested(move: Local) -> Local:
    """Remove threads that have nothing left to do."""
    d = move.driver
    return move if d.complete or d.abort or d.report else move._replace(driver=GONE)


def _written_ahead(d: Driver) -> Transaction:
    return Transaction(0, d.generation, d.ahead, 0)


def _without_tasks(d: Driver, kafka: Kafka) -> tuple[Driver, Kafka]:
    """End the staying tasks; each aborts what it has begun."""
    return d._replace(ahead=0), kafka.without((_written_ahead(d),)) if d.ahead else kafka


def _sweep(d: Driver, kafka: Kafka, *, tasks_stay: bool = False) -> Local:
    """Abort open transactions that are not to be kept. A transaction of a higher generation shows that this one is
    over. ``tasks_stay``: they go on writing; else they end."""
    if not tasks_stay:
        d, kafka = _without_tasks(d, kafka)
    if any(one.generation > d.generation for one in kafka.open):
        return Local("finds a higher generation", d._replace(phase=Phase.FENCED), kafka)
    kept = (_written_ahead(d),) if d.ahead else ()
    gone = tuple(
        one for one in kafka.open if one not in kept and not (d.work >> one.checkpoint & 1 and _counts(d, one))
    )
    return Local("sweeps", d, kafka.without(gone), aborted=gone)


def _handle(d: Driver, checkpoint: int, sink: int = 0) -> tuple[int, int, int]:
    """Generation, amendment and driver of the transaction that counts for a checkpoint, as far as the driver knows."""
    handle = d.other if sink else d.handle
    return handle[1:] if handle[0] == checkpoint else (d.generation, 0, d.token if d.claims else 0)


def _amendment(d: Driver, checkpoint: int) -> int:
    """The amendment of a checkpoint, as far as the driver knows."""
    return max(_handle(d, checkpoint, sink)[1] for sink in range(d.sinks))


def _has_lost(d: Driver, checkpoint: int) -> bool:
    """True when the sink whose turn it is waits to write the checkpoint again."""
    return d.lost == checkpoint and (d.sinks == 1 or bool(d.lost_by >> d.turn & 1))


def _counts(d: Driver, one: Transaction) -> bool:
    return (one.generation, one.amendment, one.token) == _handle(d, one.checkpoint, one.sink)


def _replay(d: Driver, kafka: Kafka) -> Local:
    """Abort everything later, and write the lost records again."""
    checkpoint, label = d.replay, f"writes checkpoint {d.replay} again"
    reported, d = d.replay_of, d._replace(replay=0, replay_of=0)
    if not d.work >> checkpoint & 1 or _amendment(d, checkpoint) != reported:
        return Local("gets the instruction to replay again", d, kafka)
    at = (d.answer if d.answered == checkpoint else d.at) - 1
    if d.answered > checkpoint:
        d = d._replace(answered=0, answer=0, work=d.work & ~(1 << d.answered))
    swept = _sweep(d, kafka)
    if swept.driver.phase is Phase.FENCED:
        return swept
    mine = Transaction(checkpoint, d.generation, at, reported + 1, d.token if d.claims else 0, d.replay_by)
    handle = (checkpoint, d.generation, reported + 1, mine.token)
    lost_by = d.lost_by & ~(1 << d.replay_by)
    d = d._replace(phase=Phase.AMENDING, call=checkpoint, complete=0, waits=False, lost=checkpoint if lost_by else 0)
    d = d._replace(lost_by=lost_by, turn=d.turn if d.report else 0)
    d = d._replace(other=handle) if d.replay_by else d._replace(handle=handle)
    kafka = swept.kafka._replace(open=tuple(sorted({*swept.kafka.open, mine})))
    return Local(label, d, kafka, aborted=swept.aborted, replayed=checkpoint)


def _abandon(label: str, d: Driver, kafka: Kafka, checkpoint: int) -> Local:
    """Abort the checkpoint's own transaction, then everything else left open."""
    if d.answered == checkpoint:
        d = d._replace(answered=0, answer=0)
    return _sweep(d._replace(work=d.work & ~(1 << checkpoint)), kafka)._replace(label=label)


def _take(d: Driver, kafka: Kafka) -> Local:
    """Take the claim, if it is still the one that the coordinator has compared. Nothing of the job is touched
    before."""
    if not is_unchanged(d, kafka):
        close = _close(d, "restarting")
        return Local("finds that the claim has changed, and leaves", GONE, kafka, sent=(close,))
    claim = Claim(d.generation, d.token, d.base)
    taken = d._replace(phase=Phase.SWEEPING, claimed=d.base, seen=NO_CLAIM)
    return Local("takes the claim", taken, kafka._replace(claim=claim))


def _take_in_place(d: Driver, kafka: Kafka) -> Local:
    """Let the coordinator take the claim, or begin again."""
    if not is_unchanged(d, kafka):
        return Local("finds that the claim has changed", GONE, kafka)
    claim = Claim(d.generation, d.token, d.base)
    return Local("takes the claim", d._replace(seen=NO_CLAIM), kafka._replace(claim=claim))


def _renew(d: Driver, kafka: Kafka, checkpoint: int) -> Local:
    """Let the claim name a checkpoint before it is committed. A driver that finds another claim has lost the job."""
    if not is_own(d, kafka):
        return Local("finds another claim: it has lost the job", GONE, kafka)
    claim = Claim(d.generation, d.token, checkpoint)
    return Local(f"claims checkpoint {checkpoint}", d._replace(claimed=checkpoint), kafka._replace(claim=claim))


def is_unchanged(driver: Driver, kafka: Kafka) -> bool:
    """Compare the claim before it is taken."""
    return kafka.claim == driver.seen


def is_own(driver: Driver, kafka: Kafka) -> bool:
    """Compare the claim before it is renewed."""
    return kafka.claim == Claim(driver.generation, driver.token, driver.claimed)


def has_claimed(driver: Driver, checkpoint: int) -> bool:
    """True when the driver may commit the checkpoint: its claim names it."""
    return not driver.claims or driver.claimed >= checkpoint


def _recover(d: Driver, kafka: Kafka) -> Local:
    if d.work and not d.lost:
        d = d._replace(phase=Phase.SETTLING, complete=d.base)
    else:
        d = d._replace(phase=Phase.IDLE, stream=Stream.WANTED)
    return _sweep(d, kafka)._replace(label="recovers: sweeps what is undecided")


def _commit(d: Driver, kafka: Kafka) -> Local:
    """Let the settling thread end the transaction of a completed checkpoint, and report it."""
    checkpoint, label, before = d.complete, f"commits checkpoint {d.complete} at Kafka", d
    d = d._replace(complete=0, knows=max(d.knows, checkpoint) if d.claims else 0)
    if d.report:
        return Local("finds the commit ordered again", d, kafka)
    if not d.work >> checkpoint & 1:
        report = checkpoint if checkpoint == d.settled else 0
        reported = d._replace(report=report, report_of=_amendment(d, checkpoint) if report else 0)
        return Local(f"gets the instruction to commit checkpoint {checkpoint} again", reported, kafka)
    if _has_lost(d, checkpoint):
        left = d._replace(turn=d.turn + 1, complete=checkpoint) if d.turn + 1 < d.sinks else d._replace(turn=0)
        return Local(f"leaves checkpoint {checkpoint} to be written again", left, kafka)
    if not has_claimed(d, checkpoint):
        return _renew(before._replace(knows=d.knows), kafka, checkpoint)
    generation, amendment, token = _handle(d, checkpoint, d.turn)
    d = d._replace(report=checkpoint, report_of=_amendment(d, checkpoint))
    ordered = Transaction(checkpoint, generation, 0, amendment, token, d.turn)
    if d.turn == d.table:
        return _commit_to_table(before, d, kafka, ordered)
    label += f" for {SINKS[d.turn]}" if d.sinks > 1 else ""
    if kafka.committed >> ordered.bit & 1:
        return Local(label + " again", d, kafka, committed=ordered)
    of = (checkpoint, d.turn)
    found = next((one for one in kafka.open if (one.checkpoint, one.sink) == of and _counts(d, one)), None)
    if found is None and any((one.checkpoint, one.sink) == of and _counts(d, one) for one in kafka.lost):
        return Local(f"finds checkpoint {checkpoint} lost", d._replace(outcome="lost"), kafka)
    if found is None:
        text = f"checkpoint {checkpoint} is completed, and its transaction is gone"
        lost = d._replace(outcome="lost")
        return Local(label, d, kafka, committed=ordered, violation=Violation(Invariant.TILES, text), failed=lost)
    violation = None
    if found.first != kafka.visible(d.turn):
        text = f"record {found.first} becomes visible after {kafka.visible(d.turn)} records"
        violation = Violation(Invariant.TILES, text)
    after = kafka.without((found,))._replace(committed=kafka.committed | 1 << found.bit)
    return Local(label, d, after, committed=found, violation=violation)


def _without_answer(d: Driver, kafka: Kafka) -> Local:
    label = f"gets no answer to its commit of checkpoint {d.complete}"
    return Local(label, d._replace(waits=False), kafka, Fault.MESSAGE)


def _commit_to_table(before: Driver, d: Driver, kafka: Kafka, ordered: Transaction) -> Local:
    """Look at the table, and send a commit if it proves nothing. ``d``: the driver that reports it as committed."""
    checkpoint = ordered.checkpoint
    if before.waits and tables.under_way(kafka, before):
        return Local("", before, kafka)
    if d.database and not tables.is_owner(kafka, d.generation, d.token):
        return Local("finds another claim: it has lost the job", GONE, kafka)
    d = d._replace(waits=False)
    match tables.found(d, kafka, ordered):
        case Outcome.COMMITTED:
            text = f"checkpoint {checkpoint} is reported as committed, and is not in the table"
            violation = None if kafka.committed >> ordered.bit & 1 else Violation(Invariant.SETTLED, text)
            return Local(f"finds checkpoint {checkpoint} in the table", d, kafka, violation=violation)
        case Outcome.LOST:
            text = f"checkpoint {checkpoint} is called lost, and a commit of it may still arrive"
            violation = Violation(Invariant.TILES, text) if tables.is_committing(kafka, ordered) else None
            lost = d._replace(outcome="lost")
            return Local(f"finds checkpoint {checkpoint} lost", lost, kafka, violation=violation)
        case Outcome.IN_DOUBT:
            return Local(f"finds no proof of checkpoint {checkpoint}", d._replace(outcome="doubt"), kafka)
        case sent:
            what = "a fence against" if sent.fence else "the commit of"
            flights = tuple(sorted({*kafka.table.flights, sent}))
            after = kafka._replace(table=kafka.table._replace(flights=flights))
            waiting = before._replace(waits=True, knows=d.knows)
            committed = None if sent.fence else ordered
            return Local(f"sends {what} checkpoint {checkpoint} to the table", waiting, after, committed=committed)


def heard(driver: Driver, flight: Flight) -> Driver:
    """The driver after a commit to the table has arrived: it gets the answer if it has sent that, and waits for it."""
    d, sender = driver, (driver.generation, driver.token)
    if not d.waits or sender != (flight.generation, flight.token):
        return d
    d = d._replace(waits=False)
    if d.turn != d.table or d.complete != flight.transaction.checkpoint:
        return d
    outcome = "lost" if flight.fence else ""
    return d._replace(complete=0, report=d.complete, report_of=_amendment(d, d.complete), outcome=outcome)


def _triggers(d: Driver, kafka: Kafka) -> list[Local]:
    """Take the trigger: run the checkpoint, repeat the recorded answers, or decline it if it came to nothing."""
    checkpoint, base = d.trigger, d.trigger_base
    if d.claims:
        d = d._replace(knows=max(d.knows, base))
    taken = d._replace(trigger=0, trigger_base=0)
    again = "before the abort that was sent earlier" if d.abort else ""
    cost = Fault.MESSAGE if again else None
    if checkpoint <= d.last_run:
        phase = Phase.ACKNOWLEDGING_SOURCE if checkpoint == d.answered else Phase.REFUSING
        taken = taken._replace(phase=phase, call=checkpoint)
        return [Local(f"takes the trigger of checkpoint {checkpoint} again {again}".strip(), taken, kafka, cost)]
    if d.stopping:
        return [Local(f"does not begin checkpoint {checkpoint}: it is stopping", taken, kafka, cost)]
    moves: list[Local] = []
    for kept, doubled in ((taken, ""), (d, ", which is doubled")):
        ran = _run(kept, kafka, checkpoint, base)
        if doubled and (ran.violation or cost is not None):
            continue
        price = Fault.MESSAGE if doubled else cost
        label = f"runs checkpoint {checkpoint} {again}{doubled}".strip()
        moves.append(ran._replace(label=label, cost=price))
        if price is None and ran.driver.phase is Phase.ACKNOWLEDGING_SOURCE:
            failed = _failed(ran.driver, ran.kafka, checkpoint)
            failed = failed._replace(label=f"{label} and cannot do it", cost=Fault.DECLINE, aborted=ran.aborted)
            moves.append(failed)
            if base:
                idle = _run(kept, kafka, checkpoint, base, idle=True)
                moves.append(idle._replace(label=f"{label}: there is nothing new", cost=Fault.IDLE))
    return moves


def _run(d: Driver, kafka: Kafka, checkpoint: int, base: int, *, idle: bool = False) -> Local:
    """Abandon what was undone, write the range from the base's position, sweep, and start to acknowledge."""
    aborted: tuple[Transaction, ...] = ()
    if d.answered and base == d.answered:
        d = d._replace(base=d.answered, at=d.answer)
    elif base != d.base:
        text = f"checkpoint {checkpoint} is to build on {base}, whose positions its driver never got"
        failed = d._replace(trigger=0, trigger_base=0, over=True)
        return Local("", d, kafka, violation=Violation(Invariant.RESTORED, text), failed=failed)
    elif d.answered and d.answered > base:
        undone = _abandon("", d, kafka, d.answered)
        d, kafka, aborted = undone.driver, undone.kafka, undone.aborted
    first = base == 0
    d = d._replace(
        phase=Phase.ACKNOWLEDGING_SOURCE,
        call=checkpoint,
        last_run=checkpoint,
        answered=checkpoint,
        answer=0 if first else d.at if idle else d.at + 1,
        work=d.work if first or idle else d.work | 1 << checkpoint,
    )
    if first or idle:
        return Local("", d, kafka, aborted=aborted)
    if d.ahead and _written_ahead(d) not in kafka.open:
        return _failed(d, kafka, checkpoint)._replace(aborted=aborted)
    mine = (d.generation, d.at, 0, d.token if d.claims else 0)
    violation, written = None, {Transaction(checkpoint, *mine, sink) for sink in range(d.sinks)}
    if d.ahead not in (0, d.at):
        text = f"checkpoint {checkpoint} begins at record {d.at}, and its tasks have written from {d.ahead} on"
        violation = Violation(Invariant.TILES, text)
    if d.stays:  # a cut: what was written ahead is this checkpoint's, and the next transaction begins
        kafka, d = kafka.without((_written_ahead(d),)), d._replace(ahead=d.at + 1)
        written.add(_written_ahead(d))
    swept = _sweep(d, kafka._replace(open=tuple(sorted({*kafka.open, *written}))), tasks_stay=True)
    return swept._replace(aborted=aborted + swept.aborted, violation=violation)


def _failed(d: Driver, kafka: Kafka, checkpoint: int) -> Local:
    """The checkpoint cannot be written: decline it. Its tasks end."""
    d, kafka = _without_tasks(d, kafka)
    work = d.work & ~(1 << checkpoint)
    return Local("", d._replace(phase=Phase.DECLINING, answered=0, answer=0, work=work), kafka)


def _leave(d: Driver, kafka: Kafka, who: str) -> Local:
    """This generation has failed: sweep, unless the job is not claimed yet, try to close the job, and end."""
    swept = _sweep(d, kafka) if d.phase is not Phase.CLAIMING else Local("", d, kafka)
    sent = (_close(d, who), *left_behind(d))
    return swept._replace(label="leaves", driver=GONE, sent=sent)
