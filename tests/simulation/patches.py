"""Replaces the names in the product's modules that touch the machine, and restores them afterwards."""

import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import onceward.coordinator.client.calls
import onceward.coordinator.client.renewing
import onceward.coordinator.client.session
import onceward.coordinator.client.watching
import onceward.coordinator.links
import onceward.coordinator.pipeline.checkpoint_runner
import onceward.coordinator.pipeline.checkpoint_writer
import onceward.coordinator.pipeline.exits
import onceward.coordinator.pipeline.generation
import onceward.coordinator.pipeline.pipeline
import onceward.coordinator.pipeline.progress
import onceward.coordinator.pipeline.recovery
import onceward.coordinator.pipeline.replaying
import onceward.coordinator.pipeline.restarts
import onceward.coordinator.pipeline.settler
import onceward.coordinator.pipeline.staying.executor
import onceward.coordinator.pipeline.staying.group
import onceward.coordinator.pipeline.staying.tasks
import onceward.coordinator.pipeline.timings
import onceward.coordinator.service.engine
import onceward.coordinator.service.orphan
import onceward.coordinator.service.orphan_clusters
import onceward.coordinator.service.thread_lanes
import onceward.sinks.kafka.control.claims
import onceward.sinks.kafka.control.settling
import onceward.sinks.kafka.executor.delivery
import onceward.sinks.kafka.executor.producers
import onceward.sinks.kafka.executor.writer
from onceward.coordinator.killpoints import KillPoint
from tests.simulation import links
from tests.simulation.seats import take_seat
from tests.simulation.threads import NUMBERED_SECRETS, SECRETS, THREADING, TIME, scheduler

__all__ = ["Hooks", "patched"]


class Hooks:
    """What the current world does at the product's hooks; each world sets it."""

    kill_point: Callable[[KillPoint], None]
    armed: Callable[[KillPoint], bool]
    producer: Callable[..., Any]


class _Pools:
    """The module's producer pools; each simulated process has its own."""

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
    coordinator = onceward.coordinator
    control, executor = onceward.sinks.kafka.control, onceward.sinks.kafka.executor
    client, pipeline, service = coordinator.client, coordinator.pipeline, coordinator.service
    for module in (client.calls, client.renewing, client.watching, pipeline.exits, service.thread_lanes):
        yield module, "threading", THREADING
    staying = pipeline.staying
    for module in (executor.producers, executor.writer, staying.executor, staying.group):
        yield module, "threading", THREADING
    timed = (client.calls, client.renewing, client.session, client.watching, coordinator.links)
    for module in (*timed, pipeline.progress, pipeline.timings):
        yield module, "time", TIME
    for module in (service.orphan_clusters, executor.writer):
        yield module, "secrets", SECRETS
    yield service.orphan, "secrets", NUMBERED_SECRETS
    for module in (executor.delivery, executor.producers, staying.executor, staying.group):
        yield module, "time", TIME
    yield staying.executor, "connect", links.connect
    yield staying.group, "accept", links.accept
    yield staying.group, "_listen_on", links.listen_on
    yield staying.tasks, "new_credentials", links.new_credentials
    # The machine would seed the product's own generator; the world seeds this one.
    yield pipeline.restarts, "random", SimpleNamespace(Random=lambda: random)
    yield pipeline.pipeline, "exit_with_codes", lambda: None
    for module in (
        pipeline.generation,
        pipeline.recovery,
        pipeline.replaying,
        pipeline.checkpoint_runner,
        pipeline.checkpoint_writer,
        pipeline.settler,
        staying.executor,
        service.engine,
        service.orphan,
        control.claims,
        control.settling,
        executor.writer,
    ):
        yield module, "kill_point", _passed
    yield control.settling, "armed", _armed
    producers = executor.producers
    yield producers, "_pools", _Pools()
    yield producers, "take_seat", take_seat
    prepared = producers.PreparedProducer
    yield producers, "PreparedProducer", lambda **given: prepared(made_at=scheduler().now, **given)
    yield producers, "ArrowProducer", partial(_late, "producer")


def _late(name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(Hooks, name)(*args, **kwargs)


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Run the product on virtual time, without output."""
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
