"""A counter-example as a scenario to paste into a test (in the language of ``tests/support/player.py``).

Events of the core are played, so the lines below them are the core's real output. The drivers' own steps and those of
the network are comments.
"""

from onceward.protocol.settings import CheckpointSettings
from tests.explorer.coordinator import SETTINGS, command
from tests.explorer.search import Broken, Result
from tests.explorer.world import SINKS, Call
from tests.support.player import Player

__all__ = ["scenario", "summary"]


def summary(result: Result) -> str:
    """One line of numbers."""
    return (
        f"{result.states} states of {result.worlds} worlds with {result.coordinators} coordinators, "
        f"{result.transitions} transitions, depth {result.depth}, "
        f"{result.seconds:.1f} s ({result.cpu_seconds:.1f} s of CPU){'' if result.complete else ', not complete'}"
    )


def scenario(broken: Broken) -> str:
    """The text of a scenario file."""
    player = Player(CheckpointSettings(**SETTINGS))  # type: ignore[arg-type]
    lines = [
        f"# Broken: {broken.violation.invariant.value}.",
        f"# {broken.violation.text}",
        "settings " + " ".join(f"{name}={value}" for name, value in SETTINGS.items()),
    ]
    replaying = any(label[0] in ("kafka", "table", "copy") for label in broken.path)
    two = any(isinstance(one, Call) and one.who == SINKS[1] for label in broken.path for one in label)
    for label in broken.path:
        for line in _lines(label, player):
            if two and line.startswith("> open"):
                line += " and other"
            if replaying and line.startswith("> open"):
                line += " replaying"
            lines.append(line)
            if line.startswith(">"):
                lines += player.play(line[1:].strip())
    return "\n".join(lines) + "\n"


def _lines(label: tuple[object, ...], player: Player) -> list[str]:
    match label:
        case ("call", int(slot), Call() as call, *how):
            return _handled(call, how, player, f"driver {slot + 1}")
        case ("stray", Call() as call):
            return ["# a call arrives whose caller has gone", *_commands(call, player)]
        case ("time", Call() as call):
            return _commands(call, player)
        case ("alone", str(what)):
            return [f"# the coordinator, in place of a driver, {what}"]
        case ("alone", Call() as call, *how):
            return _handled(call, how, player, "the coordinator")
        case ("kafka", str(what)):
            return [f"# the brokers: Kafka {what}"]
        case ("table", str(what)):
            return [f"# the table {what}"]
        case ("person", Call() as call, *how):
            return _handled(call, how, player, "a person")
        case ("probe", Call() as call):
            return ["# what must be refused", *_commands(call, player)]
        case ("driver", int(slot), str(what)):
            return [f"# driver {slot + 1} {what}"]
        case ("start", int(slot), int(token)):
            return [f"# driver {slot + 1} is started as d{token}"]
        case ("driver dies", int(slot)):
            return [f"# driver {slot + 1} dies; what it has sent may still arrive"]
        case ("stream breaks", int(slot)):
            return [f"# the stream of driver {slot + 1} breaks; instructions on their way are lost"]
        case ("coordinator dies", *lost):
            return _died("", lost)
        case ("coordinator stands still", *lost):
            return _stands_still("", lost)
        case ("copy", "falls behind"):
            return ["# the standby of the database gets no more writes", "> copy"]
        case ("copy", "is promoted", *lost):
            return _promoted("", lost)
        case ("copy", "is promoted, and the leader does not know", *lost):
            return ["# the leader does not notice that its database is lost", *_promoted("", lost)]
        case ("copy", str(what)):
            return [f"# the copy of the store {what}"]
        case ("former", str(what)):
            return [f"# the former leader {what}"]
        case ("former", int(slot), Call() as call):
            return [f"# the former leader answers driver {slot + 1}: {call}"]
        case _:
            raise AssertionError(f"no words for {label}")


def _handled(call: Call, how: list[object], player: Player, who: str) -> list[str]:
    """The events of a call, and the faults around them."""
    commands = _commands(call, player)
    match how:
        case []:
            return commands
        case ["answer lost"]:
            return [f"# the answer to {who} is lost", *commands]
        case ["doubled"]:
            return ["# the call is doubled: a copy stays under way", *commands]
        case ["dies before it answers", *lost]:
            return [*commands, *_died(" after the write, before it answers", lost)]
        case ["the copy is promoted before it answers", *lost]:
            return [*commands, *_promoted(" after the write, before the coordinator answers", lost)]
        case ["stands still before it answers", *lost]:
            return [*commands, *_stands_still(" after the write, before it answers", lost)]
        case _:
            raise AssertionError(f"no words for {how}")


def _died(when: str, lost: list[object]) -> list[str]:
    return [f"# the coordinator dies, or its store fails{when}{'; instructions are lost' if lost else ''}", "> restart"]


def _stands_still(when: str, lost: list[object]) -> list[str]:
    missed = "; instructions are lost" if lost else ""
    return [f"# the coordinator stands still{when}, and another one leads{missed}", "> restart"]


def _promoted(when: str, lost: list[object]) -> list[str]:
    missed = "; instructions are lost" if lost else ""
    return [f"# the database is lost{when}, and its standby is promoted{missed}", "> promote"]


def _commands(call: Call, player: Player) -> list[str]:
    state = player.state
    match call.kind:
        case "expire" if state.session is not None and state.session.stream_lost_at is not None:
            return ["> renew", "> after 99", "> renew", "> after 52", "> renew"]
        case "expire":
            return ["> after 151", "> renew"]
        case "lease":
            return ["> after 101"]
        case "overdue":
            return ["> after 99", "> renew", "> after 99", "> renew", "> after 3"]
        case "take" if state.driverless_since is not None:
            return ["> after 101", f"> {command(call)}"]
        case "open" | "stop" | "cancel" | "savepoint" | "take" | "tick":
            return [f"> {command(call)}"]
        case _:
            newest = call.generation == state.durable.generation
            if call.token and state.durable.driver != f"d{call.token}":
                return [f"> {command(call)} as g{call.generation} of d{call.token}"]
            return [f"> {command(call)}{'' if newest else f' as g{call.generation}'}"]
