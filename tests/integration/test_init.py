"""`onceward init`, as a user follows it: the test of the new project passes, and notices a job that is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.user_project import run_tests

pytestmark = [pytest.mark.long, pytest.mark.timeout(1700)]

TEST = "tests/test_job.py::test_paid_orders_are_copied"


def test_the_test_of_a_new_project_passes_until_its_transform_is_wrong(tmp_path: Path) -> None:
    project = tmp_path / "project"
    subprocess.run([sys.executable, "-m", "onceward.operate", "init", project], check=True, timeout=60)
    ran = run_tests(project)
    assert f"PASSED {TEST}" in ran.stdout, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert "1 passed in" in ran.stdout  # and no warnings

    job, right = project / "job.py", "value like '% paid'"
    assert right in job.read_text()
    job.write_text(job.read_text().replace(right, "value like '%1 paid'"))
    ran = run_tests(project)
    assert f"FAILED {TEST}" in ran.stdout, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert "Right contains one more item: b'order 3 paid'" in ran.stdout
