"""A source of your own: reads the lines of the files in a directory, exactly once.

    python examples/custom_source.py

Needs a broker at localhost:9092 with the topic ``log-lines``, and a directory ``logs`` with files ``NAME.log``.
Programs may add files and append to them, and must change nothing else.

A position is the number of bytes of each file that were read. From one position, each plan reads up to the end of the
last whole line, so it reads the same again after a failure, and the next one begins there.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onceward import KafkaSink, Pipeline
from onceward.connectors import (
    Document,
    Finding,
    HaltedError,
    JobContext,
    JsonObject,
    Participant,
    ParticipantName,
    Plan,
    ReplayRefusedError,
    Resource,
    Role,
    Severity,
    Source,
    SplitReader,
)

if TYPE_CHECKING:
    import pyarrow as pa

LINES_OF_A_BATCH = 10_000


@dataclass(frozen=True)
class LineReader:
    """Reads a split. It is pickled and runs on executors, in whose directories it needs the same path."""

    directory: str

    def __call__(self, split: JsonObject, columns: frozenset[str]) -> "Iterator[pa.RecordBatch]":
        with open(os.path.join(self.directory, split["file"]), "rb") as file:
            at = file.seek(split["start"])
            lines: list[bytes] = []
            while at < split["end"]:
                line = file.readline()
                at += len(line)
                if not line.endswith(b"\n"):
                    raise EOFError(f"{file.name} ends before byte {split['end']}, and was longer when it was planned")
                lines.append(line[:-1])
                if len(lines) == LINES_OF_A_BATCH:
                    yield _batch(lines)
                    lines = []
            if lines:
                yield _batch(lines)


class LinesSource(Source):
    """The column ``value`` is a line, without its end. All executors must share the directory's filesystem.

    bounded: the job finishes at the end that the files had when it started.
    """

    schema = "value binary"
    copied_columns = ("value",)

    def __init__(self, directory: str, *, bounded: bool = False) -> None:
        self.participant = Participant(name=ParticipantName("source"), role=Role.SOURCE, kind="lines")
        self._directory = Path(directory).absolute()
        self._bounded = bounded

    def open(self, context: JobContext) -> None:
        self._new_ends: dict[str, int] | None = None

    def preflight(self) -> Sequence[Finding]:
        if self._directory.is_dir():
            return ()
        subject, fix = f"input {self._directory}", "Create the directory, or name another one."
        return [Finding(severity=Severity.ERROR, subject=subject, message="There is no such directory.", fix=fix)]

    def resolve(self) -> Document:
        ends = self._ends({}) if self._bounded else None
        return _positions(dict.fromkeys(self._ends({}), 0), ends)

    def begin_new_run(self) -> None:
        if self._bounded:
            self._new_ends = self._ends({})

    def restore(self, positions: Document) -> None:
        for name, read in positions.body["read"].items():
            if (size := self._size(name)) < read or not (self._directory / name).exists():
                raise HaltedError(
                    f"{read} bytes of {name} were read, and it has {size}. Nothing was read from it again. Put the "
                    "file back, or restore an older checkpoint."
                )

    def plan(self, base: Document) -> Plan:
        read, ends = base.body["read"], base.body["ends"]
        if self._new_ends is not None and all(read[name] == end for name, end in ends.items()):
            ends = self._new_ends
        now = self._ends(read) if ends is None else ends
        splits = [
            {"file": name, "start": read.get(name, 0), "end": end}
            for name, end in now.items()
            if end > read.get(name, 0)
        ]
        return Plan(
            splits=tuple(splits),
            positions=_positions({**read, **now}, ends),
            records=sum(split["end"] - split["start"] for split in splits),  # each has a byte at least: its end
            lag=0,
            finished=ends is not None and not splits,
        )

    def read(self) -> SplitReader:
        return LineReader(str(self._directory))

    def halves(self, splits: Sequence[JsonObject]) -> tuple[Sequence[JsonObject], Sequence[JsonObject]] | None:
        middle = len(splits) // 2
        return (splits[:middle], splits[middle:]) if middle else None

    def describe(self, splits: Sequence[JsonObject]) -> str:
        return ", ".join(f"{split['file']} bytes [{split['start']}, {split['end']})" for split in splits)

    def check_replay(self, splits: Sequence[JsonObject], positions: Document) -> None:
        for split in splits:
            if self._size(split["file"]) < split["end"]:
                raise ReplayRefusedError(f"{split['file']} ends before byte {split['end']}")

    def reads(self, resource: Resource) -> bool:
        here = Resource(kind="directory", cluster=socket.gethostname(), name=str(self._directory))
        return resource == here

    def close(self) -> None:
        pass

    def _size(self, name: str) -> int:
        path = self._directory / name
        return path.stat().st_size if path.exists() else 0

    def _ends(self, read: JsonObject) -> dict[str, int]:
        """The end of the last whole line of each file."""
        return {path.name: _end(path, read.get(path.name, 0)) for path in sorted(self._directory.glob("*.log"))}


def _positions(read: JsonObject, ends: JsonObject | None) -> Document:
    return Document(kind="lines-positions", version=1, body={"read": read, "ends": ends})


def _end(path: Path, read: int) -> int:
    """The end of the last whole line: the program that writes the file may not have finished the one after it."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > read:
            begin = max(read, end - 65_536)
            file.seek(begin)
            found = file.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return read


def _batch(lines: Sequence[bytes]) -> "pa.RecordBatch":
    import pyarrow as pa  # the driver needs none

    return pa.RecordBatch.from_arrays([pa.array(lines, pa.binary())], ["value"])


if __name__ == "__main__":
    Pipeline(
        job="lines-to-kafka",
        source=LinesSource("logs"),
        transform=lambda df: df.where("value not like '%DEBUG%'"),
        sink=KafkaSink("localhost:9092", topic="log-lines"),
    ).run()
