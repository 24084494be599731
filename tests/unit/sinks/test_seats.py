"""Which process takes over the ids of a worker process that has ended, with real processes and files."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from onceward import KafkaCluster
from onceward.sinks.kafka.client import Producer
from onceward.sinks.kafka.errors import DeliveryError
from onceward.sinks.kafka.executor import producers, seats
from onceward.sinks.kafka.executor.producers import PoolKey, PreparedProducer, ProducerPool
from onceward.sinks.kafka.executor.seats import NOTHING, Seat, take_seat

HOLD = """
import sys, time
from pathlib import Path
from onceward.sinks.kafka.executor import seats
seats._SHARED_MEMORY = Path(sys.argv[1])
seat = seats.take_seat("orders", "sink", 1)
seat.strike(0)
seat.keep(0, 7)
print(seat.worker, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a test directory in place of the machine's shared memory; return the directory of this user's seats."""
    monkeypatch.setattr(seats, "_SHARED_MEMORY", tmp_path)
    return tmp_path / f"onceward-{os.getuid()}"


def taken(generation: int = 1, job: str = "orders") -> Seat:
    return take_seat(job, "sink", generation)


def left(number: int, checkpoint: int) -> str:
    """Return the seat of a process that voted once and left."""
    seat = taken()
    seat.strike(number)
    seat.keep(number, checkpoint)
    return seat.worker


def test_the_seat_of_a_killed_process_is_taken_and_never_that_of_a_living_one(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            worker = holder.stdout.readline().strip()
            assert taken().worker != worker
            holder.send_signal(signal.SIGSTOP)
            assert taken().worker != worker, "it may wake"
        finally:
            holder.kill()
    seat = taken()
    assert (seat.worker, seat.count, seat.last) == (worker, 1, {0: 7})


def test_two_processes_never_have_one_seat() -> None:
    worker = left(0, 7)
    first, second = taken(), taken()
    assert first.worker == worker
    assert second.worker != worker


def test_an_id_is_struck_out_before_it_is_used_and_its_number_is_never_given_again() -> None:
    worker = left(0, 7)
    seat = taken()
    seat.strike(0)
    seat.strike(1)
    del seat
    again = taken()
    assert (again.worker, again.count, again.last) == (worker, 2, {})


def test_the_seat_used_last_is_taken_first(memory: Path) -> None:
    seats = [taken() for _ in range(3)]
    for number, seat in enumerate(seats):
        seat.keep(0, 1)
        (path,) = memory.glob(f"*.{seat.worker}")
        os.utime(path, (1e9, 2e9 + number))
    wanted = [seat.worker for seat in reversed(seats)]
    del seats, seat
    found = [taken(), taken(), taken()]
    assert [seat.worker for seat in found] == wanted


@pytest.mark.parametrize("content", [b"", b"[1,", b"{}", b"[1,[[0,7]]", b"null\n"])
def test_a_seat_of_which_nothing_can_be_made_is_not_taken(memory: Path, content: bytes) -> None:
    worker = left(0, 7)
    (path,) = memory.iterdir()
    path.write_bytes(content)
    seat = taken()
    assert (seat.worker != worker, seat.count, seat.last) == (True, 0, {})
    assert not path.exists()


def test_a_seat_that_could_not_be_written_is_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    left(0, 7)
    seat = taken()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    seat.strike(0)
    worker = seat.worker
    del seat
    assert taken().worker != worker


def test_seats_of_earlier_generations_and_of_jobs_long_gone_are_removed(memory: Path) -> None:
    living = taken(1)
    left(0, 7)
    other, gone = taken(job="other"), taken(job="gone")
    for seat in (living, other, gone):
        seat.keep(0, 1)
    (path,) = memory.glob("gone.*")
    os.utime(path, (1e9, 1e9))
    del other, gone, seat
    newer = taken(generation=2)
    assert newer.last == {}
    kept = sorted(path.name.rpartition(".")[0] for path in memory.iterdir())
    assert kept == ["orders.sink.1", "orders.sink.2", "other.sink.1"], "one of the earlier generation has its process"


@pytest.mark.parametrize("how", ["no such memory", "another user's", "open to others"])
def test_without_shared_memory_each_process_has_its_own_seat(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    match how:
        case "no such memory":
            monkeypatch.setattr(seats, "_SHARED_MEMORY", tmp_path / "none")
        case "another user's":
            (tmp_path / "theirs").mkdir()
            memory.symlink_to(tmp_path / "theirs")
        case _:
            memory.mkdir(mode=0o777)
            memory.chmod(0o777)
    assert left(0, 7) != left(0, 7)
    assert not list(tmp_path.glob("*/*"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers that need no broker, and are made ahead."""
    slow = cast(Producer, SimpleNamespace(slow_to_make=True))

    class Idle(PreparedProducer):
        usable = property(lambda _self: True)

    def make(self: ProducerPool, number: int) -> PreparedProducer:
        return Idle(id=self._id(number), producer=slow, failures=[])

    monkeypatch.setattr(producers.ProducerPool, "_make", make)


KEY = PoolKey(
    job="orders", sink="sink", generation=1, cluster=KafkaCluster("localhost:1"), transaction_timeout_ms=1, topics=()
)


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_processes_that_replace_each_other_use_the_same_ids(slots: int) -> None:
    """A new process runs each checkpoint and writes all its slots; each checkpoint is settled before the next one."""
    used, committed = set[str](), dict[str, int]()
    for checkpoint in range(1, 200):
        pool, now = ProducerPool(KEY), set[str]()
        for _ in range(slots):
            identifier = pool.take(committed).id
            pool.voted(identifier, checkpoint)
            now.add(identifier.suffix)
        assert len(now) == slots
        for ahead in pool._ahead:
            ahead.result()
        del pool
        used |= now
        committed |= dict.fromkeys(now, checkpoint)
    assert len(used) <= slots + 1


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    "settled",
    [lambda _: {}, lambda suffix: {suffix: 6}, lambda _: {"0123456789ab.0": 7}],
    ids=["none", "older", "other"],
)
def test_an_id_with_an_unsettled_transaction_is_not_taken_over(
    settled: Callable[[str], dict[str, int]],
) -> None:
    first = ProducerPool(KEY)
    identifier = first.take({}).id
    first.voted(identifier, 7)
    suffix = identifier.suffix
    del first
    second = ProducerPool(KEY)
    assert second.take(settled(suffix)).id.suffix != suffix


@pytest.mark.usefixtures("made")
def test_an_id_of_a_process_that_died_while_writing_is_not_taken_over() -> None:
    first = ProducerPool(KEY)
    identifier = first.take({}).id
    first.voted(identifier, 7)
    suffix = identifier.suffix
    assert first.take({suffix: 7}).id.suffix == suffix
    first._ahead[0].result()
    del first
    second = ProducerPool(KEY)
    assert second.take({suffix: 7}).id.suffix != suffix


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("process", ["same", "next"])
def test_an_id_that_was_made_ahead_is_not_used_once_it_is_offered_no_longer(process: str) -> None:
    """Its receipt is deleted once it is no longer offered."""
    pool = ProducerPool(KEY)
    first = pool.take({}).id
    pool.voted(first, 1)
    assert pool.take({first.suffix: 1}).id == first
    pool.voted(first, 2)
    pool.voted(pool.take({first.suffix: 2}).id, 3)
    ahead = pool._ahead[0].result()
    assert ahead is not None
    assert ahead.id == first
    if process == "next":
        del pool
        pool = ProducerPool(KEY)
    assert pool.take({first.suffix: 1}).id != first


@pytest.mark.usefixtures("made")
def test_producers_of_a_task_that_stays_are_made_ahead_under_ids_of_their_own() -> None:
    """Each transaction is settled while the next one is written."""
    pool, used, committed = ProducerPool(replace(KEY, stays=True)), set[str](), dict[str, int]()
    for checkpoint in range(1, 200):
        identifier = pool.take(committed).id
        ahead = [made.result() for made in pool._ahead]
        ids = {identifier, *(prepared.id for prepared in ahead if prepared is not None)}
        assert len(ids) == (1 if checkpoint == 1 else 3)
        pool.voted(identifier, checkpoint)
        used.add(identifier.suffix)
        committed |= {pool._id(n).suffix: last for n, last in pool._seat.last.items() if NOTHING < last < checkpoint}
    assert len(used) <= 5


@pytest.mark.usefixtures("made")
def test_an_id_whose_producer_failed_to_start_is_never_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request to the brokers may still be on the way, and would abort what is written under the id later."""
    make, asked = producers.ProducerPool._make, list[int]()

    def failing(self: ProducerPool, number: int) -> PreparedProducer:
        asked.append(number)
        if asked == [0, 1, 2]:  # the third id is the first one made ahead
            raise DeliveryError("no answer")
        return make(self, number)

    monkeypatch.setattr(producers.ProducerPool, "_make", failing)
    pool = ProducerPool(KEY)
    assert [pool.take({}).id.n for _ in range(5)] == [0, 1, 3, 4, 5]
    assert asked.count(2) == 1
