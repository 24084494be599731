"""The garbage collector is paused for a block and no longer, and never switched on by us."""

import gc
from collections.abc import Iterator

import pytest

from sources.kafka.collector import collector_paused


@pytest.fixture(autouse=True)
def _collector_as_it_was() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


def test_it_is_off_within_the_block_and_on_behind_it() -> None:
    gc.enable()
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            pass
        assert not gc.isenabled(), "an inner block does not end the outer one"
    assert gc.isenabled()


def test_it_is_on_again_after_an_error() -> None:
    gc.enable()
    with pytest.raises(ValueError, match="of the block"), collector_paused():
        raise ValueError("of the block")
    assert gc.isenabled()


def test_a_collector_that_somebody_switched_off_stays_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()
