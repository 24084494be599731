"""A bounded job that is started again: each run has its own end, and a run that broke off continues to the end it had.

Drivers run in their own processes, without Spark.
"""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import NewPartitions

from onceward.common.killpoints import KillPoint
from tests.support.processes import JobProcesses, Starter
from tests.support.topics import Topics, assert_exactly_once, wait_for

pytestmark = pytest.mark.timeout(300)

EACH = 10


class Nightly:
    """A job that reads up to ``latest``, 5 offsets per checkpoint."""

    def __init__(self, topics: Topics, here: JobProcesses, source: str, sink: str) -> None:
        self.topics, self.here, self.source, self.sink = topics, here, source, sink
        self._filled = 0

    def fill(self) -> None:
        """Add ten records."""
        values: list[bytes | None] = [b"%d" % number for number in range(self._filled, self._filled + EACH)]
        self.topics.fill(self.source, values, key=b"k")
        self._filled += EACH

    def run(self) -> int:
        """Run to the end and return the number of records in the output."""
        self.here.finish()
        return self.written()

    def crash(self, point: KillPoint, count: int = 1) -> None:
        self.here.wait_for_kill(point, count, self.here.driver(kill_at=[f"{point.value}:{count}"]))

    def written(self) -> int:
        return len(self.topics.values(self.sink))


@pytest.fixture
def nightly(topics: Topics, job_processes: Starter) -> Iterator[Nightly]:
    source, sink = topics.create("in"), topics.create("out")
    options = {"start": "earliest", "end": "latest", "max_offsets_per_checkpoint": 5, "discovery_interval": "1h"}
    with job_processes(source, sink, source_options=options, settings={"interval": "50ms"}) as here:
        made = Nightly(topics, here, source, sink)
        made.fill()
        yield made


def test_a_run_after_a_finished_one_reads_the_new_records(nightly: Nightly) -> None:
    assert nightly.run() == EACH
    assert nightly.run() == EACH  # there was no new input
    nightly.fill()
    assert nightly.run() == 2 * EACH
    assert_exactly_once(nightly.topics, nightly.source, nightly.sink)


@pytest.mark.parametrize(
    ("point", "count"),
    [(KillPoint.DRIVER_AFTER_PRE_COMMIT, 2), (KillPoint.DRIVER_BEFORE_CLOSE, 1)],
    ids=["in_the_middle", "before_it_has_finished"],
)
def test_an_interrupted_run_continues_to_its_original_end(nightly: Nightly, point: KillPoint, count: int) -> None:
    nightly.crash(point, count)
    nightly.fill()
    assert nightly.run() == EACH
    assert nightly.run() == 2 * EACH
    assert_exactly_once(nightly.topics, nightly.source, nightly.sink)


def test_a_new_run_that_broke_off_before_its_first_checkpoint_is_still_a_new_one(nightly: Nightly) -> None:
    assert nightly.run() == EACH
    nightly.fill()
    nightly.crash(KillPoint.DRIVER_AFTER_PLAN)
    assert nightly.run() == 2 * EACH
    assert_exactly_once(nightly.topics, nightly.source, nightly.sink)


def test_a_new_run_reads_partitions_that_were_added_since(nightly: Nightly) -> None:
    assert nightly.run() == EACH
    wait_for(nightly.topics.admin.create_partitions([NewPartitions(nightly.source, 2)])[nightly.source])
    nightly.topics.fill(nightly.source, [b"added"], partition=1, key=b"added")
    assert nightly.run() == EACH + 1
