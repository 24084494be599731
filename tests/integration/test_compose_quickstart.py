"""compose/quickstart.yaml followed to its PASS with plain processes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from onceward.dev.demo.expected import outputs
from onceward.dev.demo.flights import TOTAL, messages
from onceward.dev.demo.topics import FLIGHTS
from tests.support.composed import composed

pytestmark = [pytest.mark.slow, pytest.mark.compose]


def written(flights: int) -> int:
    """Return the number of records that the job writes for the first ``flights`` flights."""
    return sum(len(outputs(FLIGHTS, message.key, message.value)) for message in messages(flights))


def follow(directory: Path, changed: Mapping[str, Sequence[str]], flights: int) -> None:
    """Follow docs/how-to/deploy.md: start everything, wait for the feeder, check until a verdict covers all records."""
    with composed("quickstart", directory, changed=changed) as here:
        here.up()
        assert here.ended("feeder") == 0, here.said("feeder")
        assert f"{flights} messages confirmed" in here.said("feeder")
        code, said = here.verdict(written(flights))
        assert code == 0, said
        assert "exactly once: PASS" in said
        assert f"{written(flights):,} records expected, {written(flights):,} visible" in said
        assert here.stop("job") == 0, here.said("job")
        assert here.stop("coordinator") == 0, here.said("coordinator")


@pytest.mark.timeout(900)
def test_the_quickstart_comes_to_its_pass(tmp_path: Path) -> None:
    """Send fewer flights, and faster, than the file's own feeder does."""
    follow(tmp_path, {"feeder": ["--seconds=2", "--limit=5000"]}, 5000)


@pytest.mark.timeout(1800)
def test_the_quickstart_comes_to_its_pass_with_every_flight_and_no_option_changed(tmp_path: Path) -> None:
    follow(tmp_path, {}, TOTAL)
