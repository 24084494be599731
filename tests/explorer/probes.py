"""Calls that must be refused, tried on every coordinator reached.

These probes also justify two reductions of the search. A call of a stale generation, and a late copy about a decided
checkpoint, change nothing now or ever (generations and ids only grow), so worlds drop such calls.
"""

from onceward.protocol.answers import Verdict
from tests.explorer.coordinator import Coordinators, View
from tests.explorer.world import SINKS, Call
from tests.support.oracle import Invariant, Violation

__all__ = ["probe", "useless"]


def useless(call: Call, view: View, generations: int) -> bool:
    """True when a copy of the call in the network can have no effect any more."""
    if call.kind == "open":
        return view.generation >= generations
    if call.generation != view.generation or not view.owned:
        return True
    if call.checkpoint > view.output.burnt:
        return False  # this is an older copy of the store, and has yet to use this id
    match call.kind:
        case "decline" if view.output.lost and call.checkpoint == view.output.last:
            return False  # it reports that this cannot be written again
        case "ack" | "decline":
            return call.checkpoint != view.undecided
        case "settle" if call.checkpoint == view.undecided:
            return False  # the same
        case "settle":
            return call.checkpoint != view.output.last or view.output.settled or call.base != view.output.amendment
        case "amend":
            return call.checkpoint != view.output.last or view.output.settled or not view.output.lost
        case _:
            return False


def probe(coordinators: Coordinators, coordinator: int) -> tuple[Call, Violation] | None:
    """Probe one coordinator. Returns the call that it should have refused, if any."""
    view = coordinators.views[coordinator]
    idle = coordinators.call(coordinator, Call("tick", 0)).after
    stale = [generation for generation in range(1, view.generation + 2) if generation != view.generation]
    if not view.owned and view.generation:
        stale.append(view.generation)
    for generation in stale:
        for call in _calls(view, generation):
            result = coordinators.call(coordinator, call)
            closed_again = call.kind == "close" and generation == view.generation
            silent = call.kind == "lost" or closed_again
            if (
                result.after != idle
                or result.restarted >= 0
                or (result.reply.verdict is not Verdict.FENCED and not silent)
            ):
                text = f"generation {view.generation} owns the job, and {call} is {result.reply.verdict.value}"
                return call, Violation(Invariant.STALE, text)
    if view.owned:
        for call in _calls(view, view.generation):
            if call.kind in ("ack", "decline", "settle") and useless(call, view, 0):
                result = coordinators.call(coordinator, call)
                if result.after != idle or result.restarted >= 0:
                    text = f"{call} is {result.reply.verdict.value} and changes something"
                    return call, Violation(Invariant.NEVER_CHANGES, text)
    if view.owned and view.output.named:
        for call in _calls(view, view.generation):
            if call.kind != "lost":
                call = call._replace(token=99)
                result = coordinators.call(coordinator, call)
                if result.after != idle or result.restarted >= 0 or result.reply.verdict is not Verdict.FENCED:
                    text = f"{call} comes from another process and is {result.reply.verdict.value}"
                    return call, Violation(Invariant.STALE, text)
    if view.stream:
        for earlier in range(view.generation):  # 0: no takeover
            call = Call("open", 9, base=earlier)
            if coordinators.call(coordinator, call).reply.verdict is not Verdict.BUSY:
                return call, Violation(Invariant.STALE, "a living driver is replaced without a permission")
    return None


def _calls(view: View, generation: int) -> list[Call]:
    """All calls that a driver of this generation may have in flight."""
    output = view.output
    calls = [Call("watch", generation), Call("lost", generation), Call("close", generation, who="failed")]
    for checkpoint in range(1, output.burnt + 1):
        data = output.last != 0
        calls += [
            Call("ack", generation, checkpoint, "source", output.last, output.end + 1),
            Call("decline", generation, checkpoint),
        ]
        for sink in range(output.sinks):
            calls.append(Call("ack", generation, checkpoint, SINKS[sink], output.last, data=data))
            calls.append(Call("settle", generation, checkpoint, sink=sink))
    return calls
