"""``onceward resolve`` and ``transactions``: they show evidence, refuse contradictions, and keep decisions."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.common.errors import ConfigurationError, ExitCode, HaltedError, OncewardError, RefusedError
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.service.systems import Systems
from onceward.operate.brokers import Brokers
from onceward.operate.cli import app
from onceward.operate.resolving import Resolution, decide, slots_of
from onceward.operate.transactions import rows
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.requests import Ruling
from onceward.protocol.status import JobStatus
from onceward.protocol.values import Committable, Outcome
from tests.support.commands import onceward
from tests.support.scripted import SINK, SOURCE
from tests.unit.operate.halted import ORDERS, SETTINGS, FakeBrokers, halted, open_transaction


@contextmanager
def served(directory: Path) -> Iterator[OperatorClient]:
    with EmbeddedCoordinator(directory) as coordinator, OperatorClient(coordinator.address) as client:
        yield client


def resolution(ruling: Ruling, slots: str = "all", *, forced: bool = False, yes: bool = True) -> Resolution:
    reason = "Ada, after the outage"
    return Resolution(ruling=ruling, slots=slots_of(slots), sink=None, reason=reason, forced=forced, yes=yes)


def test_a_halted_job_continues_exactly_as_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    halted(tmp_path)
    fake = FakeBrokers({1: Outcome.LOST, 2: Outcome.IN_DOUBT})
    with served(tmp_path) as client:
        decide(client, fake.reached(), ORDERS, resolution(Ruling.REPLAY, "1"))
        assert client.describe(ORDERS).unresolved == {SINK.name: {2: Outcome.IN_DOUBT}}
        assert "Still to be decided: slot 2 (in_doubt) of sink" in capsys.readouterr().out
        decide(client, fake.reached(), ORDERS, resolution(Ruling.GIVEN_UP))
        summary = client.job(ORDERS)
        assert (summary.status, summary.settled) == (JobStatus.SUSPENDED, False)
        said = capsys.readouterr()
        assert "slot 2: 5 records from orders-0. Now it is in_doubt: the brokers say in_doubt" in said.err
        assert "its records are given up" in said.err
        assert "it can be restarted" in said.out
        reported = [entry.detail for entry in client.history(ORDERS, 100) if entry.event == "SlotsResolved"]
        assert [("Ada, after the outage" in one, "the brokers say" in one) for one in reported] == [(True, True)] * 2
    assert fake.aborted == [2], "what may still be open is ended, what is proved lost is left alone"
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        grant = client.open_job(ORDERS, (SOURCE, SINK), SETTINGS, None, driver="d2").grant
    assert grant.completed is not None
    assert dict(grant.lost) == {SINK.name: frozenset({1})}
    assert [one.slot for one in grant.completed.snapshots[SINK.name].committables] == [1], "0 was proved, 2 given up"


def test_a_commit_checks_with_the_brokers_first(tmp_path: Path) -> None:
    halted(tmp_path)
    fake = FakeBrokers({1: Outcome.COMMITTED, 2: Outcome.COMMITTED})
    with served(tmp_path) as client:
        decide(client, fake.reached(), ORDERS, resolution(Ruling.COMMITTED, "1,2"))
        assert (sorted(fake.asked_to_commit), fake.aborted) == ([1, 2], [])
        assert (client.job(ORDERS).status, client.job(ORDERS).settled) == (JobStatus.SUSPENDED, True)


@pytest.mark.parametrize(
    ("ruling", "slots", "now", "says"),
    [
        (Ruling.COMMITTED, "1", Outcome.LOST, "slot 1 is proved lost"),
        (Ruling.COMMITTED, "1", Outcome.IN_DOUBT, "slot 1 is proved lost"),
        (Ruling.GIVEN_UP, "2", Outcome.COMMITTED, "slot 2 is proved committed"),
        (Ruling.REPLAY, "2", Outcome.COMMITTED, "slot 2 is proved committed"),
        (Ruling.REPLAY, "2", Outcome.IN_DOUBT, "slot 2 is not proved either way"),
        (Ruling.GIVEN_UP, "0", Outcome.COMMITTED, "neither lost nor in doubt"),
    ],
)
def test_a_ruling_against_the_evidence_is_refused_unless_forced(
    tmp_path: Path, ruling: Ruling, slots: str, now: Outcome, says: str
) -> None:
    halted(tmp_path)
    fake = FakeBrokers(dict.fromkeys(range(3), now))
    with served(tmp_path) as client:
        with pytest.raises(RefusedError, match=says):
            decide(client, fake.reached(), ORDERS, resolution(ruling, slots))
        assert client.job(ORDERS).status is JobStatus.HALTED
        assert fake.aborted == []
        decide(client, fake.reached(), ORDERS, resolution(ruling, slots, forced=True))
        entry = next(one for one in client.history(ORDERS, 100) if one.event == "SlotsResolved")
        assert "against the evidence" in entry.detail


def test_nothing_that_is_not_proved_is_decided_blindly(tmp_path: Path) -> None:
    halted(tmp_path)
    unreachable = Brokers(Systems({}, {}))
    with served(tmp_path) as client:
        for ruling, slots in ((Ruling.GIVEN_UP, "2"), (Ruling.GIVEN_UP, "all"), (Ruling.COMMITTED, "1")):
            with pytest.raises(ConfigurationError, match="--systems FILE"):
                decide(client, unreachable, ORDERS, resolution(ruling, slots))
        decide(client, unreachable, ORDERS, resolution(Ruling.GIVEN_UP, "1"))
        decide(client, unreachable, ORDERS, resolution(Ruling.GIVEN_UP, "2", forced=True))
        assert client.job(ORDERS).status is JobStatus.SUSPENDED


def test_brokers_that_are_away_prove_nothing(tmp_path: Path) -> None:
    halted(tmp_path)
    fake = FakeBrokers({})
    fake.away = OncewardError("no broker answers")
    with served(tmp_path) as client:
        for ruling, slots in ((Ruling.COMMITTED, "1"), (Ruling.COMMITTED, "2"), (Ruling.GIVEN_UP, "2")):
            with pytest.raises(ConfigurationError, match="must be known first, and no broker answers"):
                decide(client, fake.reached(), ORDERS, resolution(ruling, slots))
        decide(client, fake.reached(), ORDERS, resolution(Ruling.GIVEN_UP, "1"))
        decide(client, fake.reached(), ORDERS, resolution(Ruling.GIVEN_UP, "2", forced=True))
        assert client.job(ORDERS).status is JobStatus.SUSPENDED, "the next start ends what is open"


def test_an_open_transaction_does_not_count_as_committed(tmp_path: Path) -> None:
    halted(tmp_path)
    fake = FakeBrokers({2: Outcome.IN_DOUBT}, [open_transaction(2)])
    with served(tmp_path) as client:
        with pytest.raises(RefusedError, match=r"slots \[2\] are still open"):
            decide(client, fake.reached(), ORDERS, resolution(Ruling.COMMITTED, "2"))
        fake.opened = []
        decide(client, fake.reached(), ORDERS, resolution(Ruling.COMMITTED, "2"))
        assert client.describe(ORDERS).unresolved == {SINK.name: {1: Outcome.LOST}}


def test_a_transaction_found_committed_after_it_was_skipped_is_reported_loudly(tmp_path: Path) -> None:
    halted(tmp_path)
    fake = FakeBrokers({2: Outcome.IN_DOUBT})
    fake.abort_fails = HaltedError("it is committed after all")
    with served(tmp_path) as client:
        with pytest.raises(HaltedError, match="after all"):
            decide(client, fake.reached(), ORDERS, resolution(Ruling.GIVEN_UP, "2"))
        assert client.describe(ORDERS).unresolved == {SINK.name: {1: Outcome.LOST}}, "the decision stands"


def test_transactions_shows_owner_age_time_left_and_evidence(tmp_path: Path) -> None:
    halted(tmp_path)
    older, newer = open_transaction(8, generation=0), open_transaction(9, generation=2)
    fake = FakeBrokers(
        {0: Outcome.COMMITTED, 1: Outcome.IN_DOUBT, 2: Outcome.IN_DOUBT}, [open_transaction(2), older, newer]
    )
    with served(tmp_path) as client:
        listed, problems = rows(client, fake.reached(), ORDERS)
    assert problems == []
    shown = [(one.checkpoint, one.slot, one.decision, one.state, one.left_s, one.outcome) for one in listed]
    assert shown == [
        (2, 0, "completed", "not open", None, "committed"),
        (2, 1, "completed", "not open", None, "lost"),
        (2, 2, "completed", "Ongoing", 20.0, "in_doubt"),
        (None, None, "none", "Ongoing", 20.0, ""),
        (None, None, "unknown", "Ongoing", 20.0, ""),
    ]
    assert [one.evidence for one in listed[:3]] == [
        "the brokers say committed",
        "slot 1 was lost",  # a proof stays valid when the brokers no longer show it
        "slot 2 was in_doubt",
    ]
    assert (listed[2].generation, listed[2].details) == (1, open_transaction(2).details)
    assert "of an older generation" in listed[3].evidence
    assert "another store runs this job" in listed[4].evidence


def test_an_unreachable_slot_is_unknown_and_never_omitted(tmp_path: Path) -> None:
    halted(tmp_path)
    fake = FakeBrokers({})
    fake.away = OncewardError("no broker answers")
    with served(tmp_path) as client:
        listed, problems = rows(client, fake.reached(), ORDERS)
        blind, unasked = rows(client, Brokers(Systems({}, {})), ORDERS)
    assert [(one.slot, one.state, one.outcome) for one in listed] == [
        (0, "unknown", "committed"),
        (1, "unknown", "lost"),
        (2, "unknown", "in_doubt"),
    ]
    assert "no broker answers" in problems[0]
    assert [one.state for one in blind] == ["unknown"] * 3
    assert "no --systems FILE was given" in unasked[0]


def test_a_system_that_lists_no_transactions_gives_them_neither_a_name_nor_a_state(tmp_path: Path) -> None:
    """As a Delta table, where readers wait for nothing."""
    halted(tmp_path)

    class Unlisted(FakeBrokers):
        def handle(self, committable: Committable) -> None:  # type: ignore[override]
            return None

    with served(tmp_path) as client:
        listed, problems = rows(client, Unlisted(dict.fromkeys(range(3), Outcome.LOST)).reached(), ORDERS)
    assert [(one.slot, one.transaction, one.state) for one in listed] == [(slot, "-", "-") for slot in range(3)]
    assert (problems, {one.outcome for one in listed}) == ([], {"lost"})


def test_a_file_without_a_system_of_an_outputs_kind_hides_nothing(tmp_path: Path) -> None:
    halted(tmp_path)
    other = Brokers(Systems({}, {"shop": NamedSystem(kind="other", configuration=None)}))
    with served(tmp_path) as client:
        listed, problems = rows(client, other, ORDERS)
    assert [(one.slot, one.state) for one in listed] == [(slot, "unknown") for slot in range(3)]
    assert "no system of kind test" in problems[0]


def test_the_command_lists_confirms_decides_and_exits_with_the_right_code(tmp_path: Path) -> None:
    halted(tmp_path)
    place = ("--state-dir", str(tmp_path))
    listed = onceward("transactions", "--json", *place)
    assert (listed.returncode, "no system was asked" in listed.stderr) == (0, True)
    assert [(row["slot"], row["outcome"]) for row in json.loads(listed.stdout)] == [
        (0, "committed"),
        (1, "lost"),
        (2, "in_doubt"),
    ]
    assert "slot 1 was lost" in " ".join(onceward("transactions", "orders", *place).stdout.split())
    command = ("resolve", "orders", "--give-up", "1", "--reason", "Ada: the records are obsolete", *place)
    unconfirmed = onceward(*command)
    assert (unconfirmed.returncode, unconfirmed.stdout) == (ExitCode.USAGE, "")
    for part in ("When the job halted it was lost: slot 1 was lost", "given up", "Nothing was changed", "--yes"):
        assert part in unconfirmed.stderr
    decided = onceward(*command, "--yes")
    assert decided.returncode == 0, decided.stderr
    assert "Slots 1 of checkpoint 2 count as given up." in decided.stdout
    again = onceward(*command, "--yes")
    assert (again.returncode, "[1]" in again.stderr) == (ExitCode.USAGE, True)
    refused = onceward(
        "resolve", "orders", "--replay", "2", "--reason", "Ada", "--yes", "--force", "--sink", "no", *place
    )
    assert (refused.returncode, "has no sink no" in refused.stderr) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--commit", "1", "--give-up", "2"),
        ("--commit", "one"),
        ("--commit", "-1"),
        ("--skip-input", "orders:0"),
        ("--to", "5"),
        ("--commit", "1", "--to", "5"),
        ("--skip-input", "orders", "--to", "5"),
    ],
)
def test_a_wish_that_is_not_clear_is_a_usage_error(tmp_path: Path, options: tuple[str, ...]) -> None:
    command = ["resolve", "orders", "--reason", "a test", "--yes", *options, "--state-dir", str(tmp_path)]
    error = CliRunner().invoke(app, command).exception
    assert isinstance(error, ConfigurationError)
    assert "othing was " in str(error)


def test_exit_codes_report_a_loss_until_it_is_acknowledged(tmp_path: Path) -> None:
    halted(tmp_path)
    fake = FakeBrokers({1: Outcome.LOST, 2: Outcome.IN_DOUBT})
    with served(tmp_path) as client:
        decide(client, fake.reached(), ORDERS, resolution(Ruling.GIVEN_UP))
        client.resolve(ORDERS, 2, SINK.name, {1}, Ruling.GIVEN_UP, "said twice")

    def command(*words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--state-dir", str(tmp_path)])

    listings = (("jobs",), ("jobs", "--json"), ("checkpoints", "orders"), ("history", "orders"), ("losses",))
    assert [command(*listing).exit_code for listing in listings] == [ExitCode.LOSSES] * 5
    assert "records of 2 slots were given up" in " ".join(command("jobs").stdout.split())
    reported = json.loads(command("losses", "orders", "--json").stdout)
    assert sorted(loss["settlement"]["slot"] for loss in reported) == [1, 2]
    assert "slot 2: 5 records from orders-0" in command("losses", "orders").stdout

    for wrong in (("losses", "--acknowledge", "2"), ("losses", "orders", "--acknowledge", "two", "--reason", "Ada")):
        assert isinstance(command(*wrong).exception, ConfigurationError)
    nothing = command("losses", "orders", "--acknowledge", "7", "--reason", "Ada").exception
    assert isinstance(nothing, RefusedError)
    heard = command("losses", "orders", "--acknowledge", "2", "--reason", "Ada informed the billing team")
    assert (heard.exit_code, "slots 1, 2 of sink in checkpoint 2" in heard.stdout) == (0, True)
    assert [command(*listing).exit_code for listing in listings] == [0] * 5
    assert "Ada informed the billing team" in command("losses", "orders", "--all").stdout
