import os
import signal
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest

from onceward.common.errors import FencedError, OncewardError
from onceward.driver import exits
from onceward.driver.exits import StopFlag, exit_with_codes, stopping_on_signals

PROGRAM = """
from onceward.common import errors
from onceward.driver.exits import exit_with_codes
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


def test_the_first_signal_asks_to_stop_and_a_later_one_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[bool] = []
    now = 50.0
    monkeypatch.setattr(exits, "time", SimpleNamespace(monotonic=lambda: now))
    former = signal.getsignal(signal.SIGTERM)
    with stopping_on_signals(lambda: stops.append(True)):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stops == [True]
        now += 1.0
        os.kill(os.getpid(), signal.SIGTERM)  # of the same request, passed on by another process
        assert stops == [True]
        now += 0.1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is former


def test_only_errors_with_their_own_exit_code_are_reported_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    traced: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, *_: traced.append(kind))
    exit_with_codes()
    hook = sys.excepthook
    exit_with_codes()
    assert sys.excepthook is hook, "it was put around itself"
    with pytest.raises(SystemExit) as left:
        hook(FencedError, FencedError("a newer\x1b[2J generation"), None)
    assert left.value.code == 5
    assert capsys.readouterr().err == "FencedError: a newer\\x1b[2J generation\n"
    for error in (OncewardError("a bug"), ValueError("another"), KeyboardInterrupt()):
        hook(type(error), error, None)
    assert traced == [OncewardError, ValueError, KeyboardInterrupt]


def test_signals_are_left_alone_in_other_threads() -> None:
    former, seen = signal.getsignal(signal.SIGTERM), list[object]()

    def elsewhere() -> None:
        with stopping_on_signals(lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(60)
    assert seen == [former]


def test_a_flag_that_is_set_elsewhere_ends_a_wait() -> None:
    flag = StopFlag()
    assert not flag.wait(0)
    threading.Timer(0.01, flag.set).start()
    assert flag.wait(60)
    flag.clear()
    assert not flag.is_set()
