"""Replaces the names in the product's modules that touch the machine, and restores them afterwards."""

import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import onceward.client.calls
import onceward.client.renewing
import onceward.client.session
import onceward.client.watching
import onceward.common.backoff
import onceward.common.links
import onceward.coordinator.service.engine
import onceward.coordinator.service.orphan
import onceward.coordinator.service.orphan_systems
import onceward.coordinator.service.thread_lanes
import onceward.driver.checkpoint_runner
import onceward.driver.checkpoint_writer
import onceward.driver.exits
import onceward.driver.generation
import onceward.driver.per_checkpoint
import onceward.driver.pipeline
import onceward.driver.progress
import onceward.driver.recovery
import onceward.driver.replaying
import onceward.driver.restarts
import onceward.driver.settler
import onceward.driver.staying.checkpoints
import onceward.driver.staying.group
import onceward.driver.staying.tasks
import onceward.executor.staying
import onceward.executor.timings
import onceward.sinks.kafka.client.pending
import onceward.sinks.kafka.control.claims
import onceward.sinks.kafka.control.settling
import onceward.sinks.kafka.executor.delivery
import onceward.sinks.kafka.executor.producers
import onceward.sinks.kafka.executor.writer
import onceward.sinks.lake.control.staged
import onceward.sinks.lake.control.transactions
import onceward.sinks.lake.executor.writer
import onceward.sinks.lake.identifiers
from onceward.common.killpoints import KillPoint
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


class _OneAfterTheOther(contextlib.AbstractContextManager[Any]):
    """An executor that makes each call when its result is needed."""

    def __init__(self, _threads: int) -> None:
        self.map = map

    def __exit__(self, *_error: object) -> None:
        pass


def _passed(point: KillPoint) -> None:
    Hooks.kill_point(point)


def _armed(point: KillPoint) -> bool:
    return Hooks.armed(point)


def _names() -> Iterator[tuple[ModuleType, str, Any]]:
    control, client = onceward.sinks.kafka.control, onceward.client
    service, driver = onceward.coordinator.service, onceward.driver
    executor, tasks, lake = onceward.sinks.kafka.executor, onceward.executor, onceward.sinks.lake
    for module in (client.calls, client.renewing, client.watching, driver.exits, service.thread_lanes):
        yield module, "threading", THREADING
    for module in (executor.producers, onceward.sinks.kafka.client.pending, tasks.staying, driver.staying.group):
        yield module, "threading", THREADING
    common = onceward.common
    timed = (client.calls, client.renewing, client.session, client.watching, common.backoff, common.links)
    for module in (*timed, driver.progress, tasks.timings):
        yield module, "time", TIME
    for module in (service.orphan_systems, executor.writer, lake.identifiers, lake.control.transactions):
        yield module, "secrets", SECRETS
    yield service.orphan, "secrets", NUMBERED_SECRETS
    for module in (executor.delivery, executor.producers, tasks.staying, driver.staying.group):
        yield module, "time", TIME
    yield tasks.staying, "connect", links.connect
    yield driver.staying.group, "accept", links.accept
    yield driver.staying.group, "_listen_on", links.listen_on
    yield driver.staying.tasks, "new_credentials", links.new_credentials
    # The machine would seed the product's own generator; the world seeds this one.
    yield driver.restarts, "random", SimpleNamespace(Random=lambda: random)
    yield driver.pipeline, "exit_with_codes", lambda: None
    for module in (
        driver.generation,
        driver.recovery,
        driver.replaying,
        driver.checkpoint_runner,
        driver.checkpoint_writer,
        driver.per_checkpoint,
        driver.staying.checkpoints,
        driver.settler,
        tasks.staying,
        service.engine,
        service.orphan,
        control.claims,
        control.settling,
        executor.writer,
        lake.executor.writer,
    ):
        yield module, "kill_point", _passed
    yield control.settling, "armed", _armed
    producers = executor.producers
    yield producers, "_pools", _Pools()
    yield producers, "take_seat", take_seat
    prepared = producers.PreparedProducer
    yield producers, "PreparedProducer", lambda **given: prepared(made_at=scheduler().now, **given)
    yield producers, "new_producer", partial(_late, "producer")
    yield lake.control.staged, "ThreadPoolExecutor", _OneAfterTheOther


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
