"""The promises of a sink hold for the example, and each is broken by a sink that is wrong in its way."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.connectors import OncewardError
from onceward.testing import SINK_PROMISES, BrokenPromiseError, Promise, SinkCase, check_sink
from tests.unit.promises.wrong_sinks import WRONG, directory_case

BY_NAME = {promise.__name__: promise for promise in SINK_PROMISES}


@pytest.mark.parametrize("promise", SINK_PROMISES)
def test_the_examples_sink_keeps(promise: Promise[SinkCase], tmp_path: Path) -> None:
    promise(directory_case(tmp_path))


@pytest.mark.parametrize(("wrong", "name"), [(wrong, name) for wrong in WRONG for name in WRONG[wrong].breaks])
def test_a_wrong_sink_is_found(wrong: str, name: str, tmp_path: Path) -> None:
    with pytest.raises((BrokenPromiseError, OncewardError, OSError)):
        BY_NAME[name](directory_case(tmp_path, WRONG[wrong]))


def test_every_promise_can_be_broken() -> None:
    assert {name for wrong in WRONG.values() for name in wrong.breaks} == BY_NAME.keys()
    assert len(BY_NAME) == len(SINK_PROMISES), "two promises have one name"


def test_one_call_reports_all_broken_promises(tmp_path: Path) -> None:
    made: Iterator[SinkCase] = (
        directory_case(tmp_path / str(number), WRONG["SweepsOtherSinks"]) for number in range(len(SINK_PROMISES))
    )
    with pytest.raises(ExceptionGroup, match=rf"of {len(SINK_PROMISES)} promises of a sink are broken") as broken:
        check_sink(lambda: next(made))
    notes = [note.partition(":")[0] for error in broken.value.exceptions for note in error.__notes__]
    assert Counter(notes).keys() <= BY_NAME.keys()
    assert "a_sweep_spares_what_all_sinks_of_the_job_keep" in notes


def test_one_call_is_quiet_when_all_hold(tmp_path: Path) -> None:
    directories = iter(range(len(SINK_PROMISES)))
    check_sink(lambda: directory_case(tmp_path / str(next(directories))))
