"""Seats of worker processes without files: a process leaves its seat when it dies."""

from collections import defaultdict

from onceward.sinks.kafka.executor.seats import Seat
from tests.simulation.scheduler import Process
from tests.simulation.threads import SECRETS, scheduler

__all__ = ["take_seat"]


def take_seat(job: str, sink: str, generation: int) -> Seat:
    """Take a seat that a dead process left, or a new one. All workers are on one machine."""
    clock = scheduler()
    assert clock.running is not None
    # They live and end with the world.
    machine: dict[tuple[str, str, int], list[tuple[Process, Seat]]]
    machine = clock.outside.local.setdefault(take_seat, defaultdict(list))
    seats = machine[job, sink, generation]
    left = [one for one in seats if not one[0].alive]
    seat = Seat(SECRETS.token_hex(6))
    if left:
        taken = clock.random.choice(left)
        seats.remove(taken)
        seat.worker, seat.count, seat.last = taken[1].worker, taken[1].count, dict(taken[1].last)
    seats.append((clock.running, seat))
    return seat
