"""Histories as files: one JSON object per line, written as events happen, and a last line with the number of lines.

A file without that last line, or with another number of lines, was cut: then no part of it is complete.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from onceward.operate.verify.history import (
    CheckpointReport,
    Content,
    Fed,
    History,
    Lane,
    Part,
    PartitionEnd,
    Visible,
)

__all__ = ["HistoryWriter", "read_history", "write_history"]

_VERSION = 1


class HistoryWriter:
    """Appends to a new file. For one thread at a time; ``flush`` returns when everything is in the file."""

    def __init__(self, file: Path, job: str) -> None:
        self._file = file.open("x", encoding="ascii")
        self._rows = 0
        self._row({"row": "job", "version": _VERSION, "job": job})

    def fed(self, one: Fed) -> None:
        self._row({"row": "fed", "lane": one.lane, "offset": one.offset, "outputs": one.outputs})

    def seen(self, one: Visible) -> None:
        self._row(_visible("seen", one))

    def rest(self, one: Visible) -> None:
        self._row(_visible("rest", one))

    def reported(self, one: CheckpointReport) -> None:
        ends = None if one.ends is None else [[*lane, end] for lane, end in sorted(one.ends.items())]
        self._row({"row": "report", **one._asdict(), "ends": ends})

    def end(self, one: PartitionEnd) -> None:
        self._row({"row": "end", "lane": one.lane, "high": one.high, "stable": one.stable})

    def open(self, name: str, state: str) -> None:
        self._row({"row": "open", "id": name, "state": state})

    def gap(self, part: Part, why: str) -> None:
        """Record that ``part`` is not complete, or was not recorded at all."""
        self._row({"row": "gap", "part": part.name, "why": why})

    def flush(self) -> None:
        self._file.flush()

    def finish(self, *, whole_input: bool, by_key: bool = True) -> None:
        """Write the last line, without which the file counts as cut, and close."""
        self._row({"row": "finished", "whole_input": whole_input, "by_key": by_key, "rows": self._rows + 1})
        self.close()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _row(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._rows += 1


def _visible(row: str, one: Visible) -> Mapping[str, Any]:
    return {
        "row": row,
        "lane": one.lane,
        "offset": one.offset,
        "key": one.content.key,
        "value": one.content.value,
        "at": one.at,
    }


def write_history(history: History, file: Path) -> None:
    """Write a whole history to a new file."""
    with HistoryWriter(file, history.job) as writer:
        for fed in history.fed:
            writer.fed(fed)
        for seen in history.seen:
            writer.seen(seen)
        for reported in history.reports:
            writer.reported(reported)
        for rest in history.rest:
            writer.rest(rest)
        for end in history.ends:
            writer.end(end)
        for name, state in history.open.items():
            writer.open(name, state)
        for part, why in history.gaps.items():
            for words in why:
                writer.gap(part, words)
        writer.finish(whole_input=history.whole_input, by_key=history.by_key)


def read_history(file: Path) -> History:
    """Read the file. The parts that a cut file lacks are in its gaps. Raises ValueError for any other file."""
    rows: list[dict[str, Any]] = []
    cut = ""
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
            row["row"]
        except (ValueError, TypeError, KeyError):
            cut = f"line {number} of {file.name} is damaged"
            continue
        rows.append(row)
    if lines[-1]:
        cut = f"the last line of {file.name} is not whole"
    if not rows or rows[0]["row"] != "job" or rows[0].get("version") != _VERSION:
        raise ValueError(f"{file} is no history of version {_VERSION}: nothing was judged")
    if rows[-1]["row"] != "finished":
        cut = cut or f"{file.name} has no end"
    elif rows[-1]["rows"] != len(rows):
        cut = cut or f"{file.name} has {len(rows)} lines of {rows[-1]['rows']}"
    return _history(rows, cut)


def _history(rows: Sequence[dict[str, Any]], cut: str) -> History:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(row["row"], []).append(row)
    gaps: dict[Part, list[str]] = {}
    for row in kinds.get("gap", ()):
        gaps.setdefault(Part[row["part"]], []).append(row["why"])
    if cut:
        for part in Part:
            gaps.setdefault(part, []).append(cut)
    finished = kinds.get("finished", [{}])[-1]
    return History(
        job=rows[0]["job"],
        fed=[
            Fed(Lane(*row["lane"]), row["offset"], tuple(Content(*each) for each in row["outputs"]))
            for row in kinds.get("fed", ())
        ],
        seen=[_seen(row) for row in kinds.get("seen", ())],
        rest=[_seen(row) for row in kinds.get("rest", ())],
        reports=[_reported(row) for row in kinds.get("report", ())],
        ends=[PartitionEnd(Lane(*row["lane"]), row["high"], row["stable"]) for row in kinds.get("end", ())],
        open={row["id"]: row["state"] for row in kinds.get("open", ())},
        whole_input=finished.get("whole_input", False),
        by_key=finished.get("by_key", True),
        gaps=gaps,
    )


def _seen(row: dict[str, Any]) -> Visible:
    lane = Lane(*row["lane"])
    return Visible(lane, row["offset"], Content(lane.topic, row["key"], row["value"]), row["at"])


def _reported(row: dict[str, Any]) -> CheckpointReport:
    ends = None if row["ends"] is None else {Lane(topic, number): end for topic, number, end in row["ends"]}
    return CheckpointReport(**{name: row[name] for name in CheckpointReport._fields if name != "ends"}, ends=ends)
