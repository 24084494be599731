"""Driver and all brokers die together, and the brokers start slowly.

Brokers of Kafka 4.3 then resume prepared ends, and carry out timeouts, before they know a leader: they skip markers
and report the end as complete (docs/protocol.md#skipped-markers). Every record must be visible all the same, and
nothing may stay open.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from signal import SIGCONT
from typing import Any

from onceward.common.killpoints import KillPoint
from onceward.dev.kafka.versions import broker_version
from tests.crash.points import SCENES, Scene
from tests.support.harness import Armed, Harness
from tests.support.jobs import Job, Setup
from tests.support.killed_job import REACH_LIMIT_S, at_point, conduct
from tests.support.processes import Process
from tests.support.schedules import Schedule

__all__ = ["black_out", "black_out_after_end_txn", "lose_leader", "outlast", "scenes_of_drivers"]

TOGETHER = "driver and all brokers"
_AFTER_END_TXN_MS = (0, 2, 6, 8, 15, 40)
"""From the confirmation of an EndTxn to the end of the brokers: some of its markers are not written yet."""
_TRIES = 20
_ENDS_S = 2.0
"""Time in which a driver sends the rest of the ends of a checkpoint."""
LEADER = 3
"""The broker that alone has the output in `lose_leader`."""
_SPREAD = 60
"""Output partitions. Each transaction writes to most of them, so its markers take some milliseconds."""
_RATE = 20
"""Records per second and partition: what comes while the brokers are away is soon copied."""
_WIDE: Mapping[str, Any] = {"spread": _SPREAD, "per_checkpoint": 1000, "rate": _RATE}
_OUTLASTED = (
    KillPoint.TASK_AFTER_RECEIPT,
    KillPoint.DRIVER_AFTER_ACKNOWLEDGE,
    KillPoint.DRIVER_AFTER_DECISION,
    KillPoint.DRIVER_AFTER_CLAIM_RENEWAL,
    KillPoint.DRIVER_BETWEEN_END_TXN,
    KillPoint.DRIVER_AFTER_SETTLE,
)
_OUTLASTS_S, _LIVES = 11.0, "8s"
"""The transaction of a claim lives for ten seconds, the others for eight: long enough for a checkpoint on a busy
machine."""
_WAITS_FOR_LEADERS = ("3.9", "4.0")
"""Brokers that skip no marker."""


class _Blackout(Job):
    """A job whose driver takes all brokers with it."""

    point: KillPoint | None = None
    """Where. At other points the driver dies alone."""
    after_s = 0.0
    """From the end of the driver to the end of the brokers."""
    away_s = 0.0
    """For how long the brokers stay away."""

    def fall(self, point: KillPoint, nth: int) -> None:
        """Start the next driver, and kill it and all brokers when it passes ``point`` for the ``nth`` time."""
        self.point = point
        armed = self.harness.arm(at_point(TOGETHER, point, nth))
        self.dies(self.drive(armed), armed)

    def dies(self, process: Process, armed: Armed, limit_s: float = REACH_LIMIT_S) -> bool:
        if armed.kills[0].place.partition(":")[0] != self.point:
            return super().dies(process, armed, limit_s)
        kafka = self.harness.kafka
        for kill in armed.kills:
            kill.process = TOGETHER
        self.note(*armed.kills)
        limit = time.monotonic() + limit_s
        while not armed.look() and process.running and time.monotonic() < limit:
            time.sleep(0.0005)  # the brokers die some milliseconds later, or at once
        self.lives(self.after_s)
        kafka.kill()
        process.end()
        self.lives(self.away_s)
        kafka.restart()
        return armed.look()


def scenes_of_drivers() -> Iterator[tuple[Scene, Sequence[KillPoint]]]:
    """Yield the scenes in which drivers or their tasks die, with these points."""
    for scene in SCENES:
        if points := [point for point in scene.points() if point.startswith(("driver.", "task."))]:
            yield scene, points


def black_out(harness: Harness, scene: Scene, points: Sequence[KillPoint], name: str) -> Schedule:
    """Kill driver and brokers at each of ``points``, at its first pass."""
    setup = copy(scene.setup)
    setup.rate = _RATE

    def body(job: _Blackout) -> None:
        job.drive()
        scene.begin(job)
        for job.point in points:
            scene.visit(job, job.point, 1)
        job.point = None
        scene.end(job)

    return conduct(_Blackout(harness, Schedule(part="blackouts", name=name), setup), body)


def black_out_after_end_txn(harness: Harness, name: str) -> Schedule:
    """Kill the driver when its first EndTxn is confirmed, and the brokers some milliseconds later."""

    def body(job: _Blackout) -> None:
        job.drive()
        job.settles()
        for number, after_ms in enumerate(_AFTER_END_TXN_MS):
            job.after_s = after_ms / 1000
            # of a checkpoint that it found, or of its own
            job.fall(KillPoint.DRIVER_BETWEEN_END_TXN, 1 + number % 2)
        job.drive()

    return conduct(_Blackout(harness, Schedule(part="blackouts", name=name), Setup(**_WIDE)), body)


def lose_leader(harness: Harness, name: str) -> Schedule:
    """Stop the driver between two ends, kill the only broker that has the output, and let the driver continue: the
    brokers confirm the other ends, and Kafka 4.3 skips their markers. Then kill the driver and all brokers. Repeat it
    until this has happened: the transactions may also have lost their own coordinator with that broker."""
    kafka = harness.kafka

    def body(job: Job) -> None:
        job.drive()
        for _ in range(_TRIES):
            job.settles()
            armed = harness.arm(at_point(TOGETHER, KillPoint.DRIVER_BETWEEN_END_TXN), stops=True)
            job.note(*armed.kills)
            driver = job.drive(armed)
            job.wait(armed.look, "the driver stands still between two ends")
            kafka.kill(LEADER)
            job.wait(lambda: _leaders(job) == {-1}, "the output has no leader")
            driver.send(SIGCONT)
            job.lives(_ENDS_S)
            kafka.kill()
            driver.end()
            kafka.restart()
            job.drive()
            job.settles(2)
            if job.unmarked() or broker_version() in _WAITS_FOR_LEADERS:
                return
        job.schedule.reasons.append("the brokers skipped no marker, so this proved nothing")

    return conduct(Job(harness, Schedule(part="blackouts", name=name), Setup(sink_on=(LEADER,), rate=_RATE)), body)


def outlast(harness: Harness, name: str) -> Schedule:
    """Kill driver and brokers, and let the brokers stay away until every open transaction has timed out: they carry out
    the timeouts while they start."""

    def body(job: _Blackout) -> None:
        job.drive()
        job.away_s = _OUTLASTS_S
        for point in _OUTLASTED:
            job.drive()
            job.settles()
            job.fall(point, 2)
        job.drive()
        job.settles(2)

    setup = Setup(transaction_timeout=_LIVES, settings={"timeout": _LIVES}, **_WIDE)
    return conduct(_Blackout(harness, Schedule(part="blackouts", name=name), setup), body)


def _leaders(job: Job) -> set[int]:
    partitions = job.topics.admin.list_topics(job.sink, timeout=30).topics[job.sink].partitions
    return {one.leader for one in partitions.values()}
