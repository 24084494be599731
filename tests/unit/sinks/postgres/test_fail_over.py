"""A real standby takes over: what was confirmed is there once, or its loss is seen and nothing is merged over it."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from onceward.common.killpoints import KillPoint
from onceward.connectors.interfaces import Severity
from onceward.dev.postgres.server import LocalPostgres
from onceward.protocol.values import Outcome
from onceward.sinks.postgres.errors import ContradictionError, DatabaseError
from tests.support.commands import onceward
from tests.support.database import Database
from tests.support.standby import UNFLUSHED, Standby, of_either
from tests.support.waiting import wait_until
from tests.unit.sinks.postgres.test_jobs import Job
from tests.unit.sinks.postgres.test_merges import ORDERS, rows, seen
from tests.unit.sinks.postgres.test_preflight import messages
from tests.unit.sinks.postgres.written import JOB, Run, running

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Pair:
    primary: LocalPostgres
    standby: Standby

    @property
    def dsn(self) -> str:
        return of_either(self.primary, self.standby)

    @property
    def former(self) -> Database:
        return Database(self.primary.url)

    @property
    def new(self) -> Database:
        return Database(self.standby.url)

    def fail_over(self) -> None:
        """Kill the primary, and let the standby take its place."""
        self.primary.kill()
        self.standby.promote()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with LocalPostgres(settings=UNFLUSHED) as primary, Standby(primary) as standby:
        yield Pair(primary, standby)


def connects_again(run: Run) -> None:
    """As the next generation in the same process."""

    def answers() -> bool:
        try:
            run.system.leftovers(JOB)
        except DatabaseError:  # its session is lost
            return False
        return True

    wait_until(answers, "a server answers")


@contextmanager
def claimed(pair: Pair) -> Iterator[Run]:
    """The first generation, with a table of its own, which has merged checkpoint 1 on both servers."""
    pair.former.run(ORDERS)
    with running(pair.dsn) as run:
        assert run.takes().commit(run.prepared(rows(1))).outcome is Outcome.COMMITTED
        pair.standby.catch_up()
        yield run


def test_a_standby_that_commits_wait_for_has_all_that_was_confirmed_and_commits_the_rest(pair: Pair) -> None:
    pair.former.run(ORDERS)
    pair.standby.hold_commits()
    with running(pair.dsn) as run:
        merged, staged = run.takes().prepared(rows(1)), run.prepared(rows(2), checkpoint=2)
        assert run.commit(merged).outcome is Outcome.COMMITTED
        pair.fail_over()
        for made in (merged, staged, staged):
            assert run.system.commit(run.author, made)[0].outcome is Outcome.COMMITTED
    with running(pair.dsn, generation=2) as next_run:
        assert "timeline 2, and was on 1" in messages(next_run.findings, Severity.WARNING)
        next_run.system.confirm(staged)
        next_run.takes(run.claim())
        assert next_run.commit(next_run.prepared(rows(3), checkpoint=3)).outcome is Outcome.COMMITTED
    assert seen(pair.new) == [1, 2, 3]
    assert pair.new.names() == []


def test_a_standby_that_lacks_a_confirmed_merge_gets_nothing_until_a_person_permits_it(pair: Pair) -> None:
    """It has the claim and what was staged, so nothing else shows it."""
    with claimed(pair) as run:
        missing = run.prepared(rows(2), checkpoint=2)
        run.system.renew_claim(run.claim(completed=2))
        pair.standby.catch_up()
        pair.standby.cut()
        assert run.commit(missing).outcome is Outcome.COMMITTED
        pair.fail_over()
        connects_again(run)
        later = run.prepared(rows(3), checkpoint=3)
        settlement = run.system.commit(run.author, later)[0]
        assert (settlement.outcome, seen(pair.new)) == (Outcome.IN_DOUBT, [1])
        assert "checkpoint 2 was merged before it, and its receipt is gone" in settlement.evidence
    with running(pair.dsn, generation=2) as next_run:
        assert next_run.commit(later).outcome is Outcome.IN_DOUBT, "another process knows it by the committable"
        with pytest.raises(ContradictionError, match=r"Checkpoint 2 .* its receipt is gone") as refused:
            next_run.system.confirm(missing)
        assert seen(pair.new) == [1]
        (permission,) = re.findall(r"INSERT INTO .*\)", str(refused.value))
        pair.new.run(permission)
        next_run.system.confirm(missing)
        assert next_run.commit(later).outcome is Outcome.COMMITTED
    assert seen(pair.new) == [1, 3]


def test_a_standby_with_an_older_claim_is_noticed_when_it_is_renewed(pair: Pair) -> None:
    with claimed(pair) as run:
        pair.standby.cut()
        run.system.renew_claim(run.claim(completed=2))
        assert run.commit(run.prepared(rows(2), checkpoint=2)).outcome is Outcome.COMMITTED
        pair.fail_over()
        with pytest.raises(ContradictionError, match="another server took over that had not received everything"):
            run.system.renew_claim(run.claim(completed=3))
    assert seen(pair.new) == [1]


@pytest.mark.parametrize("slots", [1, 2])
def test_rows_that_were_staged_and_not_received_are_lost_and_can_be_written_again(slots: int, pair: Pair) -> None:
    """All of them, or those of one of two slots: never is a part merged."""
    with claimed(pair) as run:
        votes = [run.write(rows(10 + slot), checkpoint=2, slot=slot) for slot in range(slots - 1)]
        pair.standby.catch_up()
        pair.standby.cut()
        votes.append(run.write(rows(2), checkpoint=2, slot=slots - 1))
        made = run.pre_commit(*votes, checkpoint=2)
        pair.fail_over()
        settlement = run.system.commit(run.author, made)[0]
        assert (settlement.outcome, seen(pair.new)) == (Outcome.LOST, [1])
        assert run.system.outcome(made[0]).outcome is Outcome.LOST
        again = run.prepared(*[rows(10 + slot) for slot in range(slots - 1)], rows(2), checkpoint=2)
        assert run.commit(again).outcome is Outcome.COMMITTED
        assert run.system.outcome(made[0]).outcome is Outcome.IN_DOUBT, "what is there is of the second attempt"
    assert seen(pair.new) == sorted([1, 2, *range(10, 9 + slots)])


def test_what_the_former_primary_still_takes_is_missed_on_the_new_one_and_it_is_left_alone(pair: Pair) -> None:
    """Two servers take writes, which no client can prevent: the loss is seen."""
    with claimed(pair) as run:
        pair.standby.promote()
        assert run.commit(run.prepared(rows(2), checkpoint=2)).outcome is Outcome.COMMITTED
        assert (seen(pair.former), seen(pair.new)) == ([1, 2], [1])
        pair.primary.kill()
        connects_again(run)
        later = run.prepared(rows(3), checkpoint=3)
        assert run.system.commit(run.author, later)[0].outcome is Outcome.IN_DOUBT
        pair.primary.restart()
        pair.standby.kill()
        wait_until(lambda: "former primary" in run.system.outcome(later[0]).evidence, "the former one answers")
        assert run.system.commit(run.author, later, give_up=lambda: True) == []
        assert seen(pair.former) == [1, 2]
        pair.standby.restart()
    assert seen(pair.new) == [1]


# -- whole jobs


@pytest.fixture
def job(pair: Pair, tmp_path: Path) -> Iterator[Job]:
    with Job(pair.former, tmp_path, KillPoint.ORPHAN_AFTER_COMMIT, dsn=pair.dsn) as job:  # which no driver passes
        yield job


def test_a_job_runs_on_when_a_standby_takes_over_that_has_everything(pair: Pair, job: Job) -> None:
    pair.standby.hold_commits()
    process = job.start()
    job.add()
    wait_until(lambda: process.poll() is not None or job.is_done(), "a checkpoint")
    pair.fail_over()
    job.database = pair.new
    job.add()
    wait_until(lambda: process.poll() is not None or job.is_done(), "the job continues")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert job.written() == sorted(job.wanted)
    assert pair.new.names() == []


def test_a_job_does_not_start_where_its_last_checkpoint_is_missing(
    pair: Pair, job: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    process = job.start()
    job.add()
    wait_until(lambda: process.poll() is not None or job.is_done(), "a checkpoint")
    pair.standby.catch_up()
    pair.standby.cut()
    job.add()
    wait_until(lambda: process.poll() is not None or job.is_done(), "a checkpoint that the standby does not get")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    pair.fail_over()
    assert job.start().wait(60) == 4
    said = capfd.readouterr().err
    assert "its receipt is gone. The database is older than it was" in said
    job.database = pair.new
    assert 0 < len(job.written()) < len(job.wanted)
    (newest,) = set(re.findall(r"onceward restore lines --from (\d+)", said))
    restored = onceward(
        "restore", "lines", "--from", newest, "--reason", "the standby", "--yes", "--state-dir", str(job.state)
    )
    assert restored.returncode == 0, restored.stderr
    job.run_to_the_end()
