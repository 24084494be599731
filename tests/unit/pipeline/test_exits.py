import os
import signal
import subprocess
import sys
import textwrap

import pytest

from coordinator.pipeline.exits import stopping_on_signals

PROGRAM = """
from coordinator import errors
from coordinator.pipeline.exits import exit_with_codes
exit_with_codes()
raise errors.{name}("what happened")
"""


@pytest.mark.parametrize(
    ("name", "code"),
    [("PreflightError", 3), ("HaltedError", 4), ("FencedError", 5), ("CoordinatorLostError", 6), ("OncewardError", 1)],
)
def test_an_uncaught_error_ends_the_process_with_its_exit_code(name: str, code: int) -> None:
    program = textwrap.dedent(PROGRAM.format(name=name))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "what happened" in done.stderr


def test_the_first_signal_asks_to_stop_and_the_second_leaves_at_once() -> None:
    stops: list[bool] = []
    former = signal.getsignal(signal.SIGTERM)
    with stopping_on_signals(lambda: stops.append(True)):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stops == [True]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is former
