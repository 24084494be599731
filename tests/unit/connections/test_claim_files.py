"""A claim in numbered files is owned by one process at a time, however they race and however slow one is."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from onceward.common.errors import ClaimChangedError, FencedError, HaltedError
from onceward.connections.claim_files import ClaimFiles
from onceward.connections.storage import LocalStorage, StorageError
from onceward.protocol.values import CheckpointId, Claim, Generation, JobName

JOB, FOLDER = JobName("orders"), "claims"


def claim(holder: str, *, generation: int = 1, completed: int = 0) -> Claim:
    return Claim(store_id="store", generation=Generation(generation), completed=CheckpointId(completed), holder=holder)


def files(at: Path) -> ClaimFiles:
    return ClaimFiles(LocalStorage(str(at)), FOLDER)


def numbers(at: Path) -> list[int]:
    return sorted(int(one.name.rpartition(".")[2]) for one in (at / FOLDER).iterdir())


class Paused(LocalStorage):
    """A storage whose process sleeps at a step while others work."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.before_create: Callable[[], None] = lambda: None
        self.after_create: Callable[[], None] = lambda: None

    def create(self, name: str, content: bytes) -> bool:
        pause, self.before_create = self.before_create, lambda: None
        pause()
        made = super().create(name, content)
        pause, self.after_create = self.after_create, lambda: None
        pause()
        return made


def renewed(holder: ClaimFiles, mine: Claim, times: int) -> None:
    for completed in range(1, times + 1):
        holder.renew(replace(mine, completed=CheckpointId(completed)))


def test_a_job_that_was_never_claimed_has_no_claim(tmp_path: Path) -> None:
    assert files(tmp_path).read(JOB) is None


def test_old_files_are_deleted_and_the_newest_is_the_claim(tmp_path: Path) -> None:
    one = files(tmp_path)
    one.take(JOB, claim("a"), ())
    renewed(one, claim("a"), 30)
    assert files(tmp_path).read(JOB) == claim("a", completed=30)
    assert numbers(tmp_path) == list(range(24, 32))


def test_a_job_whose_name_begins_with_that_of_another_has_a_claim_of_its_own(tmp_path: Path) -> None:
    one, two = files(tmp_path), files(tmp_path)
    one.take(JOB, claim("a"), ())
    two.take(JobName("orders-2"), claim("b"), ())
    assert (one.read(JOB), one.read(JobName("orders-2"))) == (claim("a"), claim("b"))


@pytest.mark.parametrize("meanwhile", [1, 3, 20])
def test_a_process_that_sleeps_before_it_writes_has_lost(tmp_path: Path, meanwhile: int) -> None:
    """Also if the number that it writes is free again: files that are far below the newest are deleted."""
    files(tmp_path).take(JOB, claim("a"), ())
    storage, other = Paused(tmp_path), files(tmp_path)

    def others_work() -> None:
        other.take(JOB, claim("b", generation=2), (claim("a"),))
        renewed(other, claim("b", generation=2), meanwhile)

    storage.before_create = others_work
    with pytest.raises(ClaimChangedError):
        ClaimFiles(storage, FOLDER).take(JOB, claim("slow", generation=2), (claim("a"),))
    owned = claim("b", generation=2, completed=meanwhile)
    assert files(tmp_path).read(JOB) == owned
    other.renew(replace(owned, completed=CheckpointId(99)))


@pytest.mark.parametrize("meanwhile", [0, 1, 20])
def test_a_renewal_that_sleeps_while_the_job_is_taken_over_is_fenced(tmp_path: Path, meanwhile: int) -> None:
    storage, other = Paused(tmp_path), files(tmp_path)
    slow = ClaimFiles(storage, FOLDER)
    slow.take(JOB, claim("a"), ())

    def others_work() -> None:
        other.take(JOB, claim("b", generation=2), (claim("a"),))
        renewed(other, claim("b", generation=2), meanwhile)

    storage.before_create = others_work
    with pytest.raises(FencedError):
        slow.renew(claim("a", completed=1))
    assert files(tmp_path).read(JOB) == claim("b", generation=2, completed=meanwhile)


def test_a_claim_that_was_replaced_before_its_process_looked_again_is_not_owned(tmp_path: Path) -> None:
    storage, other = Paused(tmp_path), files(tmp_path)
    slow = ClaimFiles(storage, FOLDER)
    storage.after_create = lambda: other.take(JOB, claim("b", generation=2), (claim("a"),))
    with pytest.raises(ClaimChangedError):
        slow.take(JOB, claim("a"), ())
    assert files(tmp_path).read(JOB) == claim("b", generation=2)


def test_a_claim_whose_write_was_not_answered_is_held(tmp_path: Path) -> None:
    storage = Paused(tmp_path)
    one = ClaimFiles(storage, FOLDER)
    one.take(JOB, claim("a"), ())

    def no_answer() -> None:
        raise StorageError("no answer")

    storage.after_create = no_answer
    with pytest.raises(StorageError):
        one.renew(claim("a", completed=1))
    one.renew(claim("a", completed=1))
    storage.after_create = no_answer
    with pytest.raises(StorageError):
        one.renew(claim("a", completed=2))
    one.renew(claim("a", completed=3))
    assert files(tmp_path).read(JOB) == claim("a", completed=3)


def test_a_process_that_sleeps_while_a_job_is_forgotten_and_begun_again_has_lost(tmp_path: Path) -> None:
    storage, other = Paused(tmp_path), files(tmp_path)
    slow = ClaimFiles(storage, FOLDER)
    slow.take(JOB, claim("a"), ())
    renewed(slow, claim("a"), 5)

    def others_work() -> None:
        other.forget(JOB, claim("a"))
        assert other.read(JOB) is None
        other.take(JOB, claim("new"), ())

    storage.before_create = others_work
    with pytest.raises(FencedError):
        slow.renew(claim("a", completed=6))
    assert files(tmp_path).read(JOB) == claim("new")


def deleted(at: Path) -> None:
    for one in (at / FOLDER).iterdir():
        one.unlink()


def test_a_former_driver_that_slept_while_a_tool_deleted_the_claims_does_not_take_the_job_back(tmp_path: Path) -> None:
    storage, present = Paused(tmp_path), files(tmp_path)
    former = ClaimFiles(storage, FOLDER)
    former.take(JOB, claim("a"), ())
    renewed(former, claim("a"), 5)

    def others_work() -> None:
        deleted(tmp_path)
        present.take(JOB, claim("b", generation=2, completed=5), ())
        present.renew(claim("b", generation=2, completed=6))

    storage.before_create = others_work
    with pytest.raises(FencedError, match="generation 2"):
        former.renew(claim("a", completed=5))
    present.renew(claim("b", generation=2, completed=7))
    assert files(tmp_path).read(JOB) == claim("b", generation=2, completed=7)


def test_of_two_stores_that_claim_a_job_whose_claims_a_tool_has_deleted_both_stop(tmp_path: Path) -> None:
    former, present, theirs = files(tmp_path), files(tmp_path), replace(claim("b"), store_id="other")
    former.take(JOB, claim("a"), ())
    renewed(former, claim("a"), 5)
    deleted(tmp_path)
    present.take(JOB, theirs, ())
    with pytest.raises(FencedError, match="store other"):
        former.renew(claim("a", completed=6))
    with pytest.raises(FencedError, match="store store"):
        present.renew(replace(theirs, completed=CheckpointId(1)))


@pytest.mark.parametrize("moment", ["before_create", "after_create"])
def test_a_claim_that_a_tool_deletes_is_written_again(tmp_path: Path, moment: str) -> None:
    storage = Paused(tmp_path)
    one = ClaimFiles(storage, FOLDER)
    one.take(JOB, claim("a"), ())
    for completed in (1, 2):
        setattr(storage, moment, lambda: deleted(tmp_path))
        one.renew(claim("a", completed=completed))
        assert files(tmp_path).read(JOB) == claim("a", completed=completed)
    setattr(storage, moment, lambda: deleted(tmp_path))
    one.take(JOB, claim("b", generation=2, completed=2), (claim("a", completed=2),))
    assert files(tmp_path).read(JOB) == claim("b", generation=2, completed=2)


def put_back(at: Path, found: Claim) -> None:
    """As a tool or a machine with a clock of its own may do: it is no takeover, or it is one."""
    (at / "elsewhere").mkdir()
    put = files(at / "elsewhere")
    put.take(JOB, found, ())
    (path,) = (at / "elsewhere" / FOLDER).iterdir()
    path.rename(at / FOLDER / f"{JOB}.claim.{max(numbers(at)) + 3}")


@pytest.mark.parametrize(
    "older",
    [
        claim("a"),
        claim("a", completed=5),
        claim("b", generation=2, completed=4),
    ],
    ids=["of an earlier generation", "of an earlier generation, as far", "its own"],
)
def test_an_older_claim_of_the_own_store_is_replaced(tmp_path: Path, older: Claim) -> None:
    one, held = files(tmp_path), claim("b", generation=2, completed=5)
    one.take(JOB, held, ())
    put_back(tmp_path, older)
    one.renew(replace(held, completed=CheckpointId(6)))
    assert files(tmp_path).read(JOB) == replace(held, completed=CheckpointId(6))
    assert numbers(tmp_path)[-1] == numbers(tmp_path)[-2] + 1


@pytest.mark.parametrize(
    "other",
    [
        claim("a", completed=6),
        replace(claim("a", completed=5), amendment=1),
        claim("x", generation=2, completed=5),
        claim("x", generation=3),
        replace(claim("a"), store_id="other"),
    ],
    ids=[
        "that knows more",
        "that knows an amendment more",
        "of another holder of the generation",
        "of a later generation",
        "of another store",
    ],
)
def test_a_claim_that_the_own_store_does_not_rule_out_fences(tmp_path: Path, other: Claim) -> None:
    one, held = files(tmp_path), claim("b", generation=2, completed=5)
    one.take(JOB, held, ())
    put_back(tmp_path, other)
    with pytest.raises(FencedError):
        one.renew(replace(held, completed=CheckpointId(6)))
    assert files(tmp_path).read(JOB) == other


def test_a_claim_of_another_store_or_of_a_newer_generation_is_not_forgotten(tmp_path: Path) -> None:
    files(tmp_path).take(JOB, claim("a", generation=3), ())
    for last in (claim("x", generation=2), replace(claim("x", generation=9), store_id="other")):
        files(tmp_path).forget(JOB, last)
        assert files(tmp_path).read(JOB) == claim("a", generation=3)
    files(tmp_path).forget(JOB, claim("x", generation=3))
    assert files(tmp_path).read(JOB) is None
    assert len(numbers(tmp_path)) == 1


def test_a_claim_that_cannot_be_read_halts_and_is_not_replaced(tmp_path: Path) -> None:
    one = files(tmp_path)
    one.take(JOB, claim("a"), ())
    (tmp_path / FOLDER / f"{JOB}.claim.2").write_bytes(b'{"version": 7}')
    with pytest.raises(HaltedError, match="cannot be read"):
        one.read(JOB)
    with pytest.raises(HaltedError, match="cannot be read"):
        one.take(JOB, claim("b"), (claim("a"),))
    assert numbers(tmp_path) == [1, 2]


def increments(at: Path, name: str, times: int) -> Sequence[int]:
    """Count up in the claim, as many processes do it together; return the values that this one has written."""
    written: list[int] = []
    one = files(at)
    while len(written) < times:
        found = one.read(JOB)
        value = found.completed + 1 if found else 1
        try:
            one.take(JOB, claim(f"{name}.{value}", completed=value), () if found is None else (found,))
        except ClaimChangedError:
            continue
        written.append(value)
    return written


def check_increments(at: Path, found: Iterable[Sequence[int]]) -> None:
    """No process has written in place of a value that was replaced already. One that was replaced before it looked
    again does not know that its value counted, so some values have no owner."""
    every = sorted(value for each in found for value in each)
    assert every == sorted(set(every))
    last = files(at).read(JOB)
    assert last is not None
    assert last.completed == every[-1] == numbers(at)[-1]


def test_threads_that_race_replace_each_claim_once(tmp_path: Path) -> None:
    together = threading.Barrier(6)

    def run(name: int) -> Sequence[int]:
        together.wait()
        return increments(tmp_path, str(name), 25)

    with ThreadPoolExecutor(6) as threads:
        check_increments(tmp_path, threads.map(run, range(6)))


def test_processes_that_race_replace_each_claim_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.unit.connections.test_claim_files import increments; "
        "print(*increments(Path(sys.argv[1]), sys.argv[2], 25))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(name)], stdout=subprocess.PIPE, text=True)
        for name in range(4)
    ]
    outputs = [each.communicate(timeout=120)[0] for each in running]
    assert [each.returncode for each in running] == [0] * 4
    check_increments(tmp_path, [list(map(int, output.split())) for output in outputs])
