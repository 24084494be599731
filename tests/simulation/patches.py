"""Where the product meets the machine: names in its modules that a simulation replaces, and puts back afterwards."""

import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import coordinator.client.calls
import coordinator.client.renewing
import coordinator.client.session
import coordinator.client.watching
import coordinator.links
import coordinator.pipeline.exits
import coordinator.pipeline.generation
import coordinator.pipeline.pipeline
import coordinator.pipeline.progress
import coordinator.pipeline.settler
import coordinator.service.engine
import coordinator.service.errands
import coordinator.service.orphan
import coordinator.service.reach
import sinks.kafka.claims
import sinks.kafka.delivery
import sinks.kafka.producers
import sinks.kafka.settling
import sinks.kafka.writer
from coordinator.killpoints import KillPoint
from tests.simulation.seats import take_seat
from tests.simulation.threads import SECRETS, THREADING, TIME, scheduler

__all__ = ["Hooks", "patched"]


class Hooks:
    """What the world that runs now does at the product's places; set by each world."""

    kill_point: Callable[[KillPoint], None]
    armed: Callable[[KillPoint], bool]
    producer: Callable[..., Any]


class _Pools:
    """The module's producer pools: a simulated process has its own."""

    def mine(self) -> dict[Any, Any]:
        process = scheduler().running
        assert process is not None
        mine: dict[Any, Any] = process.local.setdefault(_Pools, {})
        return mine


def _passed(point: KillPoint) -> None:
    Hooks.kill_point(point)


def _armed(point: KillPoint) -> bool:
    return Hooks.armed(point)


def _names() -> Iterator[tuple[ModuleType, str, Any]]:
    client, pipeline, service = coordinator.client, coordinator.pipeline, coordinator.service
    for module in (client.calls, client.renewing, client.watching, pipeline.exits, service.errands):
        yield module, "threading", THREADING
    yield sinks.kafka.producers, "threading", THREADING
    timed = (client.calls, client.renewing, client.session, client.watching, coordinator.links)
    for module in (*timed, pipeline.pipeline, pipeline.progress):
        yield module, "time", TIME
    for module in (service.reach, sinks.kafka.writer):
        yield module, "secrets", SECRETS
    for module in (sinks.kafka.delivery, sinks.kafka.producers):
        yield module, "time", TIME
    # a generator of its own would be seeded by the machine; this one is seeded by the world
    yield pipeline.pipeline, "random", SimpleNamespace(Random=lambda: random)
    yield pipeline.pipeline, "exit_with_codes", lambda: None
    for module in (
        pipeline.generation,
        pipeline.settler,
        service.engine,
        service.orphan,
        sinks.kafka.claims,
        sinks.kafka.delivery,
        sinks.kafka.settling,
        sinks.kafka.writer,
    ):
        yield module, "kill_point", _passed
    yield sinks.kafka.settling, "armed", _armed
    producers = sinks.kafka.producers
    yield producers, "_pools", _Pools()
    yield producers, "take_seat", take_seat
    prepared = producers.PreparedProducer
    yield producers, "PreparedProducer", lambda **given: prepared(made_at=scheduler().now, **given)
    yield producers, "ArrowProducer", partial(_late, "producer")


def _late(name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(Hooks, name)(*args, **kwargs)


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """The product on virtual time, and silent."""
    former = []
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        for module, name, value in _names():
            former.append((module, name, getattr(module, name)))
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in reversed(former):
            setattr(module, name, value)
        logging.disable(disabled)
