"""The supervisor of one process, such as a broker: ends it when the process that started the supervisor ends.

Runs as a separate program (``python -I -S supervisor.py ...``; standard library only, so that it starts in 20 ms and
needs no environment). It leads its own session: terminal signals do not reach the process, and killing the process
group kills the process together with its supervisor.

The owner holds the other end of the supervisor's standard input. When the owner ends, however it ends, that pipe
closes; if a fork of the owner keeps the pipe open, the supervisor still detects that its parent has changed. On Linux
the kernel also kills the process if the supervisor itself is killed. None of the three needs the owner's cooperation.

    arguments    output file, directory to remove after the owner's end ("" = none), number of the command's user and
                 group ("" = ours), then the command
    stdout       one line, the command's process id; then closed
    SIGTERM      passed on to the command; the supervisor ends with the command
    exit code    the command's (128 + n after signal n), or 0 after the owner's end
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

POLL_S = 0.25
_PR_SET_PDEATHSIG = 1


class Child(Protocol):
    """The part of ``subprocess.Popen`` that a supervisor needs of the process that it has started."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def kill(self) -> None: ...

    def send_signal(self, sig: int) -> None: ...


def die_with_parent(parent: int) -> Callable[[], None] | None:
    """Return a hook for the child to call at its start, or between fork and exec; None on systems other than Linux.

    Those rely on the owner's watch alone.

    The signal is tied to the parent's *thread* that started the child; the supervisor has only one, which lives
    as long as the process.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)

    def hook() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the request was in place
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def as_user(number: str) -> dict[str, Any]:
    """Return the arguments of ``Popen`` that make the child another user's; "" stands for ours."""
    return {"user": int(number), "group": int(number), "extra_groups": []} if number else {}


def _owner_is_gone(owner: int) -> bool:
    """Wait up to `POLL_S` for the owner's end; return whether it has ended."""
    readable, _, _ = select.select([0], [], [], POLL_S)
    return os.getppid() != owner or (bool(readable) and os.read(0, 1) == b"")


def _remove(node: Path) -> None:
    """Remove a node's directory; the last node also removes the parent directory."""
    shutil.rmtree(node, ignore_errors=True)
    with contextlib.suppress(OSError):
        if not any(entry.is_dir() for entry in node.parent.iterdir()):
            shutil.rmtree(node.parent)


def supervise(child: Child, owner: int) -> int | None:
    """Report the child's process id, and wait for its end or the owner's. Return the exit code; None after the owner's
    end."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"{child.pid}\n".encode())
    os.close(1)
    while (code := child.poll()) is None:
        if _owner_is_gone(owner):
            child.kill()
            child.wait()
            return None
    return code if code >= 0 else 128 - code


def main(arguments: list[str]) -> int:
    """Start the command and supervise it."""
    owner = os.getppid()
    output, remove, user, *command = arguments
    with Path(output).open("ab") as log:
        # The hook runs after the change of user, which would take back the kernel's promise to kill the child.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent(os.getpid()),
            **as_user(user),
        )
    code = supervise(child, owner)
    if code is None and remove:
        _remove(Path(remove))
    return code or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
