"""The command ``onceward``, in this process or in one of its own."""

import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer.main
from typer.core import TyperGroup

from onceward.operate.cli import app, main
from tests.support.processes import Process
from tests.support.waiting import wait_until

__all__ = ["Command", "command", "onceward", "onceward_process", "parsed"]

# Standard output has a file of its own. Ctrl-C works even where the tests run in the background, with SIGINT ignored.
_PROGRAM = """
import os, signal, sys
os.dup2(os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT), 1)
signal.signal(signal.SIGINT, signal.default_int_handler)
from onceward.operate.cli import main
main()
"""


def parsed(arguments: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return (command, parameters) as ``onceward ARGUMENTS`` is parsed, without running it. Raises ValueError."""
    words, command = list(arguments), typer.main.get_command(app)
    names = []
    while isinstance(command, TyperGroup):
        if not words or words[0] not in command.commands:
            raise ValueError(f"there is no command {' '.join(arguments)}")
        names.append(words.pop(0))
        command = command.commands[names[-1]]
    try:
        return " ".join(names), command.make_context(names[-1], words).params
    except Exception as error:
        # the base class of these is not public
        raise ValueError(f"{' '.join(arguments)}: {error}") from error


def onceward(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in this process and return its result: a separate one takes longer."""
    printed, said = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["onceward", *arguments]),
        mock.patch.object(sys, "stdin", io.StringIO()),
        mock.patch.dict(os.environ, _environment(environment), clear=True),
        redirect_stdout(printed),
        redirect_stderr(said),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    code = ended.value.code
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(arguments, code, printed.getvalue(), said.getvalue())


def onceward_process(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command in a separate process: servers take over the logging and the signals of their process."""
    with command(*arguments) as running:
        code, printed = running.ends()
        return subprocess.CompletedProcess(arguments, code, printed, running.said())


class Command:
    """A command in a separate process."""

    def __init__(self, process: Process, printed: Path) -> None:
        self._process, self._printed = process, printed

    @property
    def running(self) -> bool:
        return self._process.running

    def said(self) -> str:
        """Its standard error until now."""
        return self._process.log.read_text()

    def hear(self, text: str) -> None:
        """Wait until the text appears on its standard error."""
        wait_until(lambda: text in self.said(), f"{text!r} is said")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._process.send(signal.SIGINT)

    def ends(self) -> tuple[int, str]:
        """Wait for its end; return its exit code and its standard output."""
        return self._process.wait(60), self._printed.read_text()


@contextmanager
def command(*arguments: str) -> Iterator[Command]:
    """Start the command. It is killed at the end, if it still runs."""
    with tempfile.TemporaryDirectory() as directory:
        printed, said = Path(directory, "printed"), Path(directory, "said")
        said.touch()
        with mock.patch.dict(os.environ, _environment({}), clear=True):
            process = Process([sys.executable, "-c", _PROGRAM, str(printed), *arguments], said, {})
        try:
            yield Command(process, printed)
        finally:
            process.end()


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
    return {**clean, "COLUMNS": "200", **more}
