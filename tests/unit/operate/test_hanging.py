"""What the commands say of transactions that hang, and of what could not be asked."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from onceward.common.errors import OncewardError
from onceward.coordinator.service.systems import Systems
from onceward.operate import hanging
from onceward.operate.doctor.check import Level
from onceward.operate.doctor.hanging import check_hanging
from onceward.protocol.committing import FoundHanging, HangingTransaction
from onceward.protocol.kinds import NamedSystem
from tests.support.commands import onceward

OTHERS = HangingTransaction(
    cluster="main",
    topic="orders",
    partition=3,
    offset=17,
    producer_id=1000,
    epoch=5,
    age=timedelta(minutes=7),
    id="billing",
    job=None,
    state="CompleteCommit",
    certain=True,
    doubt="",
    remedy="kafka-transactions.sh ... abort",
    meaning="an abort loses them",
)


class Asked:
    """A system whose configuration is what it answers, or the error that it raises."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def hanging(self, topics: Sequence[str] | None) -> FoundHanging:
        if isinstance(self.answer, OncewardError):
            raise self.answer
        assert isinstance(self.answer, FoundHanging)
        return self.answer

    def close(self) -> None:
        pass


def asked(answer: FoundHanging | OncewardError) -> NamedSystem:
    return NamedSystem(kind="kafka", configuration=answer)


@pytest.fixture(autouse=True)
def systems(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(systems: Mapping[str, NamedSystem], _done: str) -> Systems:
        return Systems({"kafka": lambda answer, **_: Asked(answer)}, systems)  # type: ignore[dict-item]

    monkeypatch.setattr(Systems, "installed", installed)


def test_none_is_said_only_if_everything_was_looked_into(capsys: pytest.CaptureFixture[str]) -> None:
    whole, partly = FoundHanging(looked_into=12), FoundHanging(looked_into=11, unknown=("orders: grant READ",))
    hanging.list_hanging({"main": (asked(whole), [])}, as_json=False)
    assert capsys.readouterr().out.strip() == "Nothing hangs: 12 partitions were looked into."
    hanging.list_hanging({"main": (asked(whole), []), "far": (asked(partly), [])}, as_json=False)
    said = capsys.readouterr()
    assert said.out.startswith("Nothing is known to hang; what could not be looked into stands above: 23 partitions")
    assert "unknown: cluster far: orders: grant READ" in said.err


def test_a_cluster_that_does_not_answer_is_unknown_and_hides_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    named: dict[str, tuple[NamedSystem, Sequence[str]]] = {
        "gone": (asked(OncewardError("no broker answers")), []),
        "main": (asked(FoundHanging(transactions=(OTHERS,))), []),
    }
    hanging.list_hanging(named, as_json=False)
    said = capsys.readouterr()
    assert "unknown: cluster gone: no broker answers" in said.err
    for text in ("orders-3 offset 17", "1000", "7 min ago", "billing, of another program", "yes", OTHERS.remedy):
        assert text in said.out
    levels = [check.level for check in check_hanging(named)]
    assert levels == [Level.UNKNOWN, Level.ERROR]


def test_what_is_not_certain_shows_no_command_that_could_end_an_ordinary_transaction() -> None:
    doubtful = HangingTransaction(**{**vars(OTHERS), "id": "", "certain": False, "doubt": "grant it", "remedy": ""})
    (check,) = check_hanging({"main": (asked(FoundHanging(transactions=(doubtful,))), [])})
    assert (check.level, check.remedy) == (Level.UNKNOWN, "grant it")
    assert check.found.startswith("perhaps orders-3 offset 17, producer 1000, epoch 5 (no id is known)")


def test_ours_is_a_warning_because_its_job_ends_it() -> None:
    ours = HangingTransaction(**{**vars(OTHERS), "job": "billing", "remedy": "start job billing"})
    (check,) = check_hanging({"main": (asked(FoundHanging(transactions=(ours,))), [])})
    assert (check.level, check.remedy) == (Level.WARNING, "start job billing")


@pytest.mark.parametrize(
    "words", [("--hanging",), ("orders", "--hanging", "--clusters", "FILE"), ("orders", "--topic", "main:orders")]
)
def test_options_that_do_not_fit_together_are_refused(words: tuple[str, ...]) -> None:
    done = onceward("transactions", *words)
    assert done.returncode == 2
    assert "Nothing was listed" in done.stderr
