"""Puts a fault into links and removes it."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from onceward.dev.toxiproxy import Link
from tests.network.scenario import Fault
from tests.network.world import LinkedHarness

__all__ = ["SINK_BROKER", "SOURCE_BROKER", "in_force"]

SOURCE_BROKER, SINK_BROKER = 1, 2
"""Leaders of all partitions of the input and of the output, in scenarios that name one of them."""


def chosen(world: LinkedHarness, links: Sequence[str], transaction_coordinators: Sequence[int]) -> list[Link]:
    """Links by name or group. ``transaction_coordinators``: brokers that coordinate the job's transactions."""
    found: list[Link] = []
    for name in links:
        match name:
            case "driver-brokers" | "coordinator-brokers" | "second-executor-brokers":
                found += world.those(name.removesuffix("-brokers"))
            case "driver-source-broker":
                found += world.those("driver", [SOURCE_BROKER])
            case "driver-sink-broker":
                found += world.those("driver", [SINK_BROKER])
            case "driver-transaction-coordinator":
                found += world.those("driver", transaction_coordinators)
            case "leader-database":
                found.append(world.links[f"coordinator-database-{world.number(world.leader())}"])
            case "standby-database":
                found.append(world.links[f"coordinator-database-{world.number(world.other(world.leader()))}"])
            case "driver-leader":
                found.append(world.links[f"driver-coordinator-{world.number(world.leader())}"])
            case "databases":
                found += (world.links[f"coordinator-database-{world.number(seat)}"] for seat in world.seats)
            case "all":
                found += world.links.values()
            case _:
                found.append(world.links[name])
    return found


@contextmanager
def in_force(world: LinkedHarness, fault: Fault, transaction_coordinators: Sequence[int]) -> Iterator[None]:
    """Start the fault; at the end restore every link. Raises ToxiproxyError."""
    links = chosen(world, fault.links, transaction_coordinators)
    over = threading.Event()
    flapping: threading.Thread | None = None
    failed: list[Exception] = []

    def flap() -> None:
        try:
            while True:
                for link in links:
                    link.cut()
                if over.wait(fault.flap_s):
                    return
                for link in links:
                    link.mend()
                if over.wait(fault.flap_s):
                    return
        except Exception as error:  # noqa: BLE001 - raised again in the main thread
            failed.append(error)

    try:
        for link in links:
            for toxic in fault.toxics:
                link.add(toxic)
            if fault.unanswered:
                link.lead(f"127.0.0.1:{_CLOSED_PORT}")
            if fault.drop:
                link.drop()
            if fault.down:
                link.cut()
        if fault.flap_s:
            flapping = threading.Thread(target=flap, name="flapping", daemon=True)
            flapping.start()
        yield
    finally:
        over.set()
        if flapping is not None:
            flapping.join()
        world.heal()
    if failed:
        raise failed[0]


_CLOSED_PORT = 9
"""The port of the discard service, on which no process listens."""
