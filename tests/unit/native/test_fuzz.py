"""A short run of `make fuzz`: damaged batches under the address and undefined-behaviour sanitizers."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROUNDS = 80

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "cc")) is None, reason="there is no C compiler; install gcc and libc6-dev"
)


def test_no_damaged_batch_makes_the_codec_read_or_write_outside_its_memory() -> None:
    command = ["sh", str(ROOT / "native" / "fuzz" / "run.sh"), "0", "1", str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    inputs = re.search(r"fuzz: (\d+) inputs, .* 0: (\d+)", done.stdout)
    assert inputs is not None, done.stdout
    assert int(inputs[1]) == 256 * ROUNDS
    assert 0.2 < int(inputs[2]) / int(inputs[1]) < 0.8, "both outcomes must be frequent, or the damage is none"
