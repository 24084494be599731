"""``python -m benchmarks`` at its smallest size, on a real broker: the C program, which starts within milliseconds."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.main import main

pytestmark = pytest.mark.slow


@pytest.mark.skipif(shutil.which("cc") is None, reason="the C program needs a compiler")
def test_a_run_leaves_checked_figures_of_every_system_and_the_machine(tmp_path: Path) -> None:
    arguments = ["--quick", "--ours", "", "--peers", "c", "--workloads", "filter,json", "--no-plots"]
    place = main([*arguments, "--results", str(tmp_path), "--directory", str(tmp_path)])
    results = json.loads((place / "result.json").read_text())
    assert results["set_up"] == {"c": None}
    assert {"cores", "processor", "python", "pyspark", "confluent-kafka"} <= results["machine"].keys()
    without_json, filtered = results["runs"]
    assert filtered["figures"]["output_records"] == results["sizes"]["records"] / 100
    assert {"records_per_s", "records_per_s_whole", "cpu_s_per_million", "peak_pss_mb"} <= filtered["figures"].keys()
    assert "not_offered" in without_json
    assert all(goal["reached"] is None for goal in results["goals"]), "nothing of ours was measured"
