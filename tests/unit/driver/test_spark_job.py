"""How many tasks read the ranges of a checkpoint, and the port of those that stay."""

import pytest

from onceward.common.errors import ConfigurationError
from onceward.driver.spark.job import _RECORDS_PER_TASK, _RECORDS_PER_TASK_ELASTIC, _tasks, tasks_port

TASK_COSTS = 20_000
"""Records; measured (benchmarks/RESULTS.md)."""


@pytest.mark.parametrize(("records", "at_a_time"), [(0, 1), (1_300_000, 2), (50_000_000, 64)])
def test_a_checkpoint_of_about_a_second_has_no_more_tasks_than_run_at_a_time(records: int, at_a_time: int) -> None:
    assert _tasks(records, at_a_time, _RECORDS_PER_TASK) == at_a_time


@pytest.mark.parametrize("records", [10_000_000, 100_000_000, 1_000_000_000])
def test_tasks_of_long_checkpoints_stay_far_cheaper_than_their_records_and_no_longer_than_is_worth_it(
    records: int,
) -> None:
    share = TASK_COSTS * _tasks(records, 2, _RECORDS_PER_TASK) / records
    assert 0.01 < share < 0.05


def test_one_task_reads_before_spark_has_a_core() -> None:
    assert _tasks(10, 0, _RECORDS_PER_TASK) == 1


def test_where_spark_can_add_executors_there_are_tasks_for_them() -> None:
    assert _tasks(1_300_000, 2, _RECORDS_PER_TASK_ELASTIC) > 64
    assert _tasks(10_000, 2, _RECORDS_PER_TASK_ELASTIC) == 2


def test_the_port_of_staying_tasks_is_a_number_of_a_port() -> None:
    assert [tasks_port(given) for given in ("0", "7080", "65535")] == [0, 7080, 65535]
    for given in ("65536", "-1", "", "seven", "7080.0"):
        with pytest.raises(ConfigurationError, match=r"spark\.onceward\.tasks\.port"):
            tasks_port(given)
