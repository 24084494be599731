"""A coordinator whose disk fails, or that dies, inside one write of a decision: ``python -m tests.crash.disturbed ...``

The arguments are those of ``onceward``. When it has worked out its second decision and is about to write it, it lets
strace attach to the writing thread, with what ``CRASH_INJECT`` says, and goes on. ``CRASH_TRACE`` names the file that
gets the system calls; in it `DECIDED` stands where the write was over. The first decision shows that the last life's
disturbance has done no harm.
"""

import os
import subprocess
import threading

from onceward.coordinator.killpoints import KillPoint, kill_point
from onceward.coordinator.ops.cli import main
from onceward.coordinator.service import engine

__all__ = ["DECIDED", "INJECT_VARIABLE", "TRACE_VARIABLE"]

INJECT_VARIABLE, TRACE_VARIABLE = "CRASH_INJECT", "CRASH_TRACE"
DECIDED = "/the-decision-is-written"
"""Looked up in vain after the write, so that the trace shows it."""

_decisions = 0
_tracer: "subprocess.Popen[bytes] | None" = None


def _attach() -> None:
    """Returns once strace holds this thread. Only ``read`` was called while it attached, and that is left alone."""
    global _tracer
    command = ["strace", "-y", "-p", str(threading.get_native_id()), "-o", os.environ[TRACE_VARIABLE]]
    command += ["-e", "trace=!read,restart_syscall,futex", "-e", f"inject={os.environ[INJECT_VARIABLE]}"]
    _tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert _tracer.stderr is not None
    said = os.read(_tracer.stderr.fileno(), 200)
    assert b"attached" in said, said


def _detach() -> None:
    os.path.exists(DECIDED)
    assert _tracer is not None
    _tracer.terminate()
    _tracer.wait()


def _disturb(point: KillPoint) -> None:
    global _decisions
    kill_point(point)
    if point is KillPoint.COORDINATOR_BEFORE_DECISION:
        _decisions += 1
        if _decisions == 2 and INJECT_VARIABLE in os.environ:
            _attach()
    elif point is KillPoint.COORDINATOR_AFTER_DECISION and _tracer is not None and _tracer.returncode is None:
        _detach()


if __name__ == "__main__":
    engine.kill_point = _disturb  # type: ignore[attr-defined]
    main()
