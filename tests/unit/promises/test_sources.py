"""The promises of a source hold for the example, and each is broken by a source that is wrong in its way."""

from pathlib import Path

import pytest
from custom_source import LinesSource

from onceward.testing import SOURCE_PROMISES, BrokenPromiseError, Promise, SourceCase, check_source
from tests.unit.promises.wrong_sources import WRONG, AllowsEveryReplay, lines_case

BY_NAME = {promise.__name__: promise for promise in SOURCE_PROMISES}


@pytest.mark.parametrize("promise", SOURCE_PROMISES)
def test_the_examples_source_keeps(promise: Promise[SourceCase], tmp_path: Path) -> None:
    promise(lines_case(tmp_path / "in"))


@pytest.mark.parametrize(("wrong", "name"), [(wrong, name) for wrong in WRONG for name in WRONG[wrong]])
def test_a_wrong_source_is_found(wrong: type[LinesSource], name: str, tmp_path: Path) -> None:
    with pytest.raises((BrokenPromiseError, EOFError)):
        BY_NAME[name](lines_case(tmp_path / "in", wrong))


def test_every_promise_can_be_broken() -> None:
    assert {name for breaks in WRONG.values() for name in breaks} == BY_NAME.keys()
    assert len(BY_NAME) == len(SOURCE_PROMISES), "two promises have one name"


def test_one_call_reports_all_broken_promises(tmp_path: Path) -> None:
    directories = iter(range(len(SOURCE_PROMISES)))
    with pytest.raises(ExceptionGroup, match=f"1 of {len(SOURCE_PROMISES)} promises of a source are broken") as broken:
        check_source(lambda: lines_case(tmp_path / str(next(directories)), AllowsEveryReplay))
    (error,) = broken.value.exceptions
    assert error.__notes__[0].startswith("a_replay_of_input_that_is_gone_is_refused: ")


def test_the_last_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    """Also when it is longer than what is read at once to find its beginning."""
    file, long = tmp_path / "a.log", b"x" * 100_000
    source = LinesSource(str(tmp_path))
    read = source.read()

    def values(start: int) -> list[bytes]:
        end = source._ends({"a.log": start})["a.log"]
        split = {"file": "a.log", "start": start, "end": end}
        return [value for batch in read(split, frozenset()) for value in batch.column("value").to_pylist()]

    file.write_bytes(b"first\n" + long)
    assert values(0) == [b"first"]
    assert values(6) == []
    file.write_bytes(b"first\n" + long + b"\n\nnext")
    assert values(6) == [long, b""]
