"""The whole demo: a broker, a feeder, a coordinator, a driver, kills, and then the check."""

import contextlib
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from onceward.common.errors import OncewardError
from onceward.dev.demo.broker import Broker
from onceward.dev.demo.check import Checked, check
from onceward.dev.demo.events import EventReader
from onceward.dev.demo.flights import TOTAL, messages
from onceward.dev.demo.lake import create_table
from onceward.dev.demo.plan import PLAN
from onceward.dev.demo.screen import Screen, Status
from onceward.dev.demo.supervisor import Supervisor
from onceward.dev.demo.topics import FLIGHTS, JOB, OUTPUTS, PARTITIONS, TABLE
from onceward.dev.errors import DemoError
from onceward.dev.kafka import LocalKafka
from onceward.dev.postgres.server import LocalPostgres

__all__ = ["run_demo"]

_TICK_S = 0.25
_STATUS_EVERY_S = 1.0
_QUIET_S = 90.0
"""With all input fed, give up after this long without change: longer than a driver's start on a busy machine."""
_PATIENCE_S = 300.0
"""Time limit after the feeder's planned end."""


class _Ended(BaseException):
    """A signal requests the end of the demo."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run_demo(
    *,
    seconds: float = 90.0,
    limit: int | None = None,
    postgres: bool = False,
    keep: Path | None = None,
    console: Console | None = None,
) -> int:
    """Run the demo and return its exit code: 0 for ``exactly once: PASS``, 1 for ``FAIL``, 128 + n after signal n.

    Feeds the first ``limit`` flights (default: all) over about ``seconds``. ``postgres``: the coordinator's store is in
    a PostgreSQL that ends with the demo. Logs, the events, and else the store are in ``keep``, which must be new or
    empty; by default in a temporary directory that is removed if the verdict is PASS. All processes end with this one,
    however it ends. Call it from the main thread.

    Raises OncewardError if the demo cannot be set up.
    """
    console = console or Console(highlight=False)
    next(messages(1))  # check that the data set is installed before anything is started
    directory = _directory(keep)
    code = 1
    try:
        with _signals(), Screen(console) as screen:
            code = _Demo(screen, directory, seconds=seconds, limit=limit, postgres=postgres).run()
    except _Ended as ended:
        code = 128 + ended.number
        console.print("interrupted: no verdict", style="bold")
    except OncewardError as error:
        code = int(error.exit_code)
        console.print(f"{error}\nexactly once: no verdict", soft_wrap=True, markup=False)
    finally:
        if code == 0 and keep is None:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            console.print(f"logs are in {directory}", soft_wrap=True, markup=False)
    return code


class _Demo:
    """One run of the demo."""

    def __init__(self, screen: Screen, directory: Path, *, seconds: float, limit: int | None, postgres: bool) -> None:
        self._screen = screen
        self._directory = directory
        self._seconds = seconds
        self._limit = limit
        self._postgres = postgres
        self._total = TOTAL if limit is None else min(limit, TOTAL)
        self._generation = 0
        self._checkpoint = 0

    def run(self) -> int:
        screen = self._screen
        screen.phase("starting a Kafka broker")
        with LocalKafka() as kafka, contextlib.ExitStack() as cleanup:
            broker = Broker(kafka.bootstrap_servers)
            broker.create_topics([FLIGHTS, *OUTPUTS], partitions=PARTITIONS)
            table = self._directory / TABLE
            create_table(table)
            screen.phase(f"feeding {self._total:,} flights over {self._seconds:.0f} s while processes are killed")
            supervisor = Supervisor(
                brokers=kafka.bootstrap_servers,
                table=table,
                directory=self._directory,
                store_url=self._store(cleanup),
                plan=PLAN,
                total=self._total,
                open_now=lambda: broker.open_transactions(f"{JOB}."),
            )
            cleanup.callback(supervisor.close)
            supervisor.start(seconds=self._seconds)
            screen.print(f"see it in a browser: {supervisor.url}")
            troubles = self._watch(broker, supervisor)
            screen.phase("stopping the driver and the coordinator")
            history, unclean = supervisor.stop()
            screen.phase("checking the output against the data set")
            checked = check(
                kafka.bootstrap_servers,
                table,
                history=history,
                left_open=supervisor.left_open,
                planned=[kill.name for kill in supervisor.plan.all],
                happened=[kill.name for kill in supervisor.kills_done()],
                troubles=troubles + unclean,
                limit=self._limit,
            )
        return self._report(checked)

    def _store(self, cleanup: contextlib.ExitStack) -> str:
        if self._postgres:
            return cleanup.enter_context(LocalPostgres()).url
        return f"sqlite:///{self._directory / 'coordinator.sqlite'}"

    def _watch(self, broker: Broker, supervisor: Supervisor) -> list[str]:
        """Keep all processes running until all input is processed; return the problems if that never happens."""
        events = EventReader(supervisor.events)
        deadline = time.monotonic() + self._seconds + _PATIENCE_S
        quiet_since = time.monotonic()
        next_status = 0.0
        all_fed = False
        last: Status | None = None
        while True:
            for report in supervisor.look():
                self._screen.print(report, style="red")
                quiet_since = time.monotonic()
            self._follow(events)
            if supervisor.fed and not all_fed:
                all_fed = True
                self._screen.phase("everything is fed, the job catches up")
            if time.monotonic() < next_status:
                time.sleep(_TICK_S)
                continue
            next_status = time.monotonic() + _STATUS_EVERY_S
            status = self._status(broker, supervisor)
            self._screen.show(status)
            if status != last:
                last, quiet_since = status, time.monotonic()
            if supervisor.fed and status.lag == 0:
                return []
            if supervisor.fed and time.monotonic() - quiet_since > _QUIET_S:
                return [f"{status.lag} records are not processed and nothing moved for {_QUIET_S:.0f} s"]
            if time.monotonic() > deadline:
                return [f"{status.lag} records are not processed after {self._seconds + _PATIENCE_S:.0f} s"]

    def _follow(self, events: EventReader) -> None:
        for event in events.new():
            self._generation = max(self._generation, int(event.get("generation", 0)))
            match event.get("event"):
                case "settled":
                    self._checkpoint = int(event["checkpoint"])
                case "recovered":
                    self._screen.print(
                        f"generation {event['generation']} begins: {event.get('resumed', 0)} transactions resumed, "
                        f"{event.get('aborted', 0)} aborted",
                        style="green",
                    )

    def _status(self, broker: Broker, supervisor: Supervisor) -> Status:
        return Status(
            total=self._total,
            fed=sum(broker.ends([FLIGHTS]).values()),
            processed=broker.group_progress(JOB, FLIGHTS),
            written=sum(broker.ends(OUTPUTS).values()),
            generation=self._generation,
            checkpoint=self._checkpoint,
            kills=len(supervisor.kills_done()),
            planned_kills=len(supervisor.plan.all),
            restarts=supervisor.restarts,
        )

    def _report(self, checked: Checked) -> int:
        self._screen.table("What happened", checked.rows)
        for problem in checked.verdict.problems:
            self._screen.print(problem, style="red")
        if not checked.verdict.passed:
            (self._directory / "differences.txt").write_text("\n".join(checked.verdict.problems) + "\n")
        self._screen.verdict(passed=checked.verdict.passed)
        return 0 if checked.verdict.passed else 1


def _directory(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="onceward-demo-"))
    keep = keep.expanduser().absolute()
    keep.mkdir(mode=0o755, parents=True, exist_ok=True)  # a store refuses a directory in which others may write
    if any(keep.iterdir()):
        raise DemoError(f"{keep} is not empty; nothing was started. Name a new directory.")
    return keep


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Turn terminating signals into an exception, so that everything is cleaned up."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        for later in numbers:
            signal.signal(later, signal.SIG_IGN)  # cleanup takes a second or two
        raise _Ended(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
