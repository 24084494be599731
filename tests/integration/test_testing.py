"""`onceward.testing`, as its page shows it: the blocks of the page are a project whose tests run."""

import re
from pathlib import Path

import pytest

from tests.support.user_project import run_tests

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "test-a-job.md"
UNPAID = """

def test_a_job_without_its_transform_is_noticed(
    local_topics: LocalTopics, spark_session: SparkSession, tmp_path: Path
) -> None:
    orders, paid = local_topics.create("orders", 2), local_topics.create("paid", 2)
    assert local_topics.committed(paid) == []
    local_topics.produce(orders, ["order 1 cancelled"], key="customer")
    copy_paid(local_topics.servers, orders, paid, end="latest", state_dir=tmp_path / "state")
    assert local_topics.committed(paid) == [(b"customer", b"order 1 cancelled")]
"""


def test_the_test_of_the_page_passes_and_one_with_a_wrong_expectation_fails(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    for name, block in zip(("job.py", "conftest.py", "test_job.py"), blocks, strict=True):
        (tmp_path / name).write_text(block)
    with (tmp_path / "test_job.py").open("a") as file:
        file.write(UNPAID)
    ran = run_tests(tmp_path)
    assert "PASSED test_job.py::test_paid_orders_are_copied" in ran.stdout, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert "FAILED test_job.py::test_a_job_without_its_transform_is_noticed" in ran.stdout
    assert "1 failed, 1 passed" in ran.stdout
