"""A driver without Spark and Kafka, and a coordinator process that tests can kill."""

import contextlib
import os
import queue
import random
import socket
import threading
import uuid
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import assert_never

from onceward.client.session import CoordinatorClient, Session
from onceward.common.errors import OncewardError
from onceward.protocol import answers
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
    JobName,
    Outcome,
    Participant,
    ParticipantName,
    Role,
    Settlement,
    Snapshot,
)
from tests.support.documents import committable, document
from tests.support.processes import Process, coordinator_command, listens
from tests.support.waiting import wait_until

__all__ = [
    "SETTINGS",
    "SINK",
    "SOURCE",
    "CoordinatorProcess",
    "ScriptedDriver",
    "free_port",
    "positions",
    "slots",
]

SOURCE = Participant(name=ParticipantName("source"), role=Role.SOURCE, kind="test")
SINK = Participant(name=ParticipantName("sink"), role=Role.SINK, kind="test")
SETTINGS = CheckpointSettings(
    interval="5ms", tolerable_failed_checkpoints=1000, lease="5s", stream_grace="1s", orphan_grace="10s"
)


def positions(offset: int) -> Snapshot:
    return Snapshot(positions=document(offset=offset), records=1)


def slots(checkpoint: int, count: int = 2) -> Snapshot:
    return Snapshot(committables=tuple(committable(slot, of=checkpoint) for slot in range(count)), records=count)


_PORTS_FROM, _WORKERS = 61_000, 16
"""Above the ports that Linux gives to connections and to servers that name none: while a process starts again, no other
one can take its port."""
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_PORTS = cycle(random.sample(range(_PORTS_FROM + _WORKER, 65_536, _WORKERS), 280))


def free_port() -> int:
    """Return a port that no other test worker gets, and this one not again soon."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port := next(_PORTS)))
            return port


class CoordinatorProcess(Process):
    """``onceward serve`` in a separate process, with more ``options``, by default with a store in ``directory``.
    ``preamble`` is Python that it runs first."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        store_url: str = "",
        environment: Mapping[str, str] | None = None,
        preamble: str = "",
        options: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.store_url = store_url or f"sqlite:///{directory / 'store.db'}"
        directory.mkdir(exist_ok=True)
        code = f"{preamble}\nfrom onceward.operate.cli import main\nmain()"
        command = coordinator_command(self.address, self.store_url, ("-c", code))
        super().__init__([*command, "--log-level", "debug", *options], directory / "coordinator.log", environment or {})

    def wait_ready(self) -> "CoordinatorProcess":
        wait_until(lambda: listens(self.address) or not self.running, "the coordinator listens")
        assert self.running, self.tail()
        return self


class ScriptedDriver:
    """Act as a driver: run each trigger once, repeat recorded acknowledgements, commit completed checkpoints."""

    def __init__(
        self,
        client: CoordinatorClient,
        job: JobName,
        *,
        settings: CheckpointSettings = SETTINGS,
        takeover: bool = False,
    ) -> None:
        self.job = job
        self.errors: queue.Queue[OncewardError] = queue.Queue()
        self.runs: list[CheckpointId] = []
        self.committed: list[CheckpointId] = []
        self.aborted: list[CheckpointId] = []
        self.decisions: dict[CheckpointId, answers.Decision] = {}
        self.reported: list[answers.Instruction] = []
        """Other instructions, such as a stop. The test carries them out."""
        self.session: Session = client.open_job(
            job,
            (SOURCE, SINK),
            settings,
            None,
            driver=uuid.uuid4().hex,
            takeover=takeover,
            on_error=self.errors.put,
        )
        self.session.report_aborted(lambda: max(self.aborted, default=NO_CHECKPOINT))
        self._instructions: queue.Queue[answers.Instruction | None] = queue.Queue()
        self._answers: dict[CheckpointId, tuple[CheckpointId, Snapshot, Snapshot]] = {}
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self.session.start_watch(self._instructions.put)

    def wait_committed(self, count: int) -> None:
        """Wait until ``count`` checkpoints are committed in total; fail with the driver's error, if any."""
        wait_until(
            lambda: len(self.committed) >= count or not self.errors.empty(), f"{count} checkpoints are committed"
        )
        assert self.errors.empty(), self.errors.get()

    def close(self, reason: CloseReason = CloseReason.STOPPED) -> None:
        self._instructions.put(None)
        self._thread.join(30)
        self.session.close(reason)

    def _work(self) -> None:
        try:
            while (instruction := self._instructions.get()) is not None:
                self._follow(instruction)
        except OncewardError as error:
            self.errors.put(error)

    def _follow(self, instruction: answers.Instruction) -> None:
        match instruction:
            case answers.Trigger(checkpoint=checkpoint, base=base):
                for earlier in [known for known in self._answers if base < known < checkpoint]:
                    self._abort(earlier)  # the base shows it
                if checkpoint in self.decisions:
                    return  # repeated before its decision was known, delivered after it
                if checkpoint not in self._answers:
                    self.runs.append(checkpoint)
                    self._answers[checkpoint] = (base, positions(int(checkpoint)), slots(int(checkpoint)))
                self._acknowledge(checkpoint)
            case answers.Complete(checkpoint=checkpoint, amendment=amendment):
                self._decided(checkpoint, answers.Decision.COMPLETED)
                if checkpoint not in self.committed:
                    self.committed.append(checkpoint)
                proved = [Settlement(slot=slot, outcome=Outcome.COMMITTED, evidence="test") for slot in range(2)]
                self.session.settle(checkpoint, SINK.name, proved, amendment=amendment)
            case answers.Abort(checkpoint=checkpoint):
                self._abort(checkpoint)
            case answers.Stop() | answers.Cancel() | answers.Fail() | answers.Halt() | answers.Replay():
                if instruction not in self.reported:
                    self.reported.append(instruction)
            case _:
                assert_never(instruction)

    def _acknowledge(self, checkpoint: CheckpointId) -> None:
        base, source, sink = self._answers[checkpoint]
        for answer in self.session.acknowledge(checkpoint, base, {SOURCE.name: source, SINK.name: sink}):
            if (
                answer.verdict in (answers.Verdict.TOO_LATE, answers.Verdict.EXPIRED)
                and answer.decision is answers.Decision.ABORTED
            ):
                self._abort(checkpoint)
                return
            assert answer.verdict in (answers.Verdict.ACCEPTED, answers.Verdict.DUPLICATE), answer

    def _abort(self, checkpoint: CheckpointId) -> None:
        self._decided(checkpoint, answers.Decision.ABORTED)
        self._answers.pop(checkpoint, None)
        if checkpoint not in self.aborted:
            self.aborted.append(checkpoint)

    def _decided(self, checkpoint: CheckpointId, decision: answers.Decision) -> None:
        before = self.decisions.setdefault(checkpoint, decision)
        assert before is decision, f"checkpoint {checkpoint} was {before} and is now {decision}"
