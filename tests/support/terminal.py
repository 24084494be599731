"""A person's terminal: an interactive shell on a pseudo-terminal, one command at a time."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.support.waiting import wait_until

_PROMPT = re.compile(r"<exit (\d+)>\r?\n")
_STYLE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
_ROWS, _COLUMNS = 50, 400
"""So wide that no table wraps."""
_LIMIT_S = 30.0


def _take_the_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background process, as tests may be, ignores it


class Terminal:
    """A shell whose output is kept. If the tests are killed, the kernel hangs up, which ends what runs in it."""

    def __init__(self, directory: Path, environment: Mapping[str, str], *, columns: int = _COLUMNS) -> None:
        self._ours, shells = os.openpty()
        fcntl.ioctl(shells, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, columns, 0, 0))
        attributes = termios.tcgetattr(shells)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(shells, termios.TCSANOW, attributes)
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            cwd=directory,
            env={**os.environ, **environment, "PS1": r"<exit $?>\n", "PS2": "", "TERM": "xterm"},
            stdin=shells,
            stdout=shells,
            stderr=shells,
            start_new_session=True,
            preexec_fn=_take_the_terminal,
        )
        os.close(shells)
        self._output = b""
        self._typed_at = 0
        threading.Thread(target=self._keep_output, daemon=True).start()
        self.wait_for_exit(_LIMIT_S)

    @property
    def position(self) -> int:
        """Where the output ends now."""
        return len(self._output)

    def output(self, since: int = 0) -> str:
        """What was shown, without the styles of the text."""
        return _STYLE.sub("", self.styled_output(since))

    def styled_output(self, since: int = 0) -> str:
        return self._output[since:].decode(errors="replace")

    def type(self, command: str) -> None:
        """Begin a command. The one before must have ended."""
        assert self.exit_code is not None, self.output(self._typed_at)
        self._typed_at = self.position
        os.write(self._ours, command.encode() + b"\n")

    @property
    def exit_code(self) -> int | None:
        """Of the last command; None while it runs."""
        prompt = _PROMPT.search(self.output(self._typed_at))
        return int(prompt[1]) if prompt else None

    def wait_for_exit(self, limit_s: float) -> int:
        wait_until(lambda: self.exit_code is not None, "the command in the terminal ends", limit_s)
        assert self.exit_code is not None
        return self.exit_code

    def press_control_c(self) -> None:
        os.write(self._ours, b"\x03")

    def close(self) -> None:
        """Kill every process of the terminal's session."""
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._shell.wait()
        os.close(self._ours)

    def _processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    session = (entry / "stat").read_text().rpartition(")")[2].split()[3]
                    if int(session) == self._shell.pid:
                        found.append(int(entry.name))
        return found

    def _keep_output(self) -> None:
        with suppress(OSError):  # the terminal is closed
            while said := os.read(self._ours, 65536):
                self._output += said
