"""A coordinator whose disk fails, or that dies, inside one write of a decision: ``python -m tests.crash.disturbed ...``

The arguments are those of ``onceward``. Before the process writes its second decision, it lets strace attach to the
writing thread with the injection in ``CRASH_INJECT``, and then continues. ``CRASH_TRACE`` names the file of the traced
system calls; `DECIDED` appears in it where the write was over. The first decision shows that the disturbance of the
previous process did no harm.
"""

import ctypes
import os
import subprocess
import threading

from onceward.common.killpoints import KillPoint, kill_point
from onceward.coordinator.service import engine
from onceward.operate.cli import main

__all__ = ["DECIDED", "INJECT_VARIABLE", "TRACE_VARIABLE"]

INJECT_VARIABLE, TRACE_VARIABLE = "CRASH_INJECT", "CRASH_TRACE"
DECIDED = "/the-decision-is-written"
"""A path that does not exist. The process looks it up after the write, so that it appears in the trace."""
_PR_SET_DUMPABLE = 4

_decisions = 0
_tracer: "subprocess.Popen[bytes] | None" = None


def _attach() -> None:
    """Attach strace to this thread and wait for it. Meanwhile only ``read`` is called, which is never injected."""
    global _tracer
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)  # only root could attach to a coordinator
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
