"""Writes the table of versions into a page, from the kept results."""

from collections.abc import Iterable
from pathlib import Path

from tests.versions.matrix import AXES, GROUPS, OWN, Result

__all__ = ["END", "START", "fill", "rendered"]

START = "<!-- versions: written by `make versions` -->"
END = "<!-- versions: end -->"
_TITLES = {"kills": "main job with kills", OWN: "what it may change"}
_COLUMNS = ("version", *(_TITLES.get(name, name) for name in (*GROUPS, OWN)), "skipped")


def rendered(results: Iterable[Result]) -> str:
    """The table, with a line for each version that ran or that is run by default."""
    known = {(result.axis, result.version): result for result in results}
    lines = [_line(("", *_COLUMNS)), "|---" * (len(_COLUMNS) + 1) + "|"]
    for name, axis in AXES.items():
        versions = {version for of, version in known if of == name} | set(axis.default)
        for version in sorted(versions, key=lambda text: [int(number) for number in text.split(".")]):
            result = known.get((name, version))
            shown = result.exact if result is not None and result.exact else version
            lines.append(_line((axis.title, shown, *_cells(result))))
    return "\n".join(lines)


def _cells(result: Result | None) -> list[str]:
    if result is None or result.missing:
        why = "not run yet" if result is None else f"could not be had: {result.missing}"
        return [why, *[""] * (len(_COLUMNS) - 2)]
    return [*(_said(result, name) for name in (*GROUPS, OWN)), _skipped(result)]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _said(result: Result, name: str) -> str:
    if name not in AXES[result.axis].groups:
        return ""
    group = result.groups.get(name)
    if group is None:
        return "not run yet"
    if not (group.passed or group.failed):
        return "nothing ran"
    if group.failed:
        return f"FAIL: {len(group.failed)} of {group.passed + len(group.failed)}"
    return f"PASS: {group.passed}"


def _skipped(result: Result) -> str:
    reasons: dict[str, int] = {}
    for group in result.groups.values():
        for why, count in group.skipped.items():
            reasons[why] = reasons.get(why, 0) + count
    return "; ".join(f"{count}: {' '.join(why.split())}" for why, count in sorted(reasons.items()))


def fill(page: Path, results: Iterable[Result]) -> None:
    """Replace what stands between the two markers of a page; the rest is written by hand."""
    before, start, rest = page.read_text().partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"{page} lacks the line {START} or {END}")
    page.write_text(f"{before}{START}\n\n{rendered(results)}\n\n{END}{after}")
