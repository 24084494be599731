"""``make mutation``: the share of mutants that the tests without a broker notice. Exit code 1 below the bar."""

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.mutation.parts import PARTS
from tests.mutation.report import Fate, Mutant, Tally, equivalents, mutants
from tests.mutation.run import BUILD, in_package, modules, place_of, run
from tests.mutation.verdicts import Verdicts

__all__ = ["main"]

_BAR = 0.85


def main(arguments: list[str]) -> int:
    """Run the given part, or all. Print a line per file and write every survivor to a file."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("part", nargs="?", choices=PARTS, help="all without it")
    parser.add_argument("--file", help="only this module of the part, by its name without .py")
    parser.add_argument("--children", type=int, default=1, help="processes that run tests")
    parser.add_argument("--report", action="store_true", help="run nothing, print what earlier runs have found")
    chosen = parser.parse_args(arguments)
    below = []
    for name in [chosen.part] if chosen.part else PARTS:
        files = [each for each in modules(PARTS[name]) if chosen.file in (None, Path(each).stem)]
        for number, file in enumerate(files if not chosen.report else [], 1):
            print(f"{name}: {file}, {number} of {len(files)}", flush=True)
            run(PARTS[name], file, chosen.children)
        lines, passed = _report(files)
        (BUILD / f"{name}.txt").write_text("\n".join(lines) + "\n")
        print("\n".join(lines), flush=True)
        if not passed:
            below.append(name)
    if below:
        print(f"FAILED: below {_BAR:.0%}: {', '.join(below)}")
    return 1 if below else 0


def _report(files: list[str]) -> tuple[list[str], bool]:
    reasons = equivalents()
    rows = ["".join([f"{'file':44}", *(f"{each.value:>18}" for each in Fate), f"{'share':>8}"])]
    survivors = []
    complete = True
    total: Counter[Fate] = Counter()
    for file in files:
        verdicts = Verdicts.load(place_of(file), in_package(file))
        if verdicts is None:
            rows.append(f"{file:44}  not mutated yet")
            complete = False
            continue
        found = list(mutants(verdicts, reasons))
        total += (counts := Counter(each.fate for each in found))
        rows.append(_row(file, Tally(counts=counts)))
        survivors += [_line(each) for each in found if each.change]
    rows.append(_row("all", Tally(counts=total)))
    return rows + survivors, complete and Tally(counts=total).share >= _BAR


def _row(title: str, tally: Tally) -> str:
    return "".join([f"{title:44}", *(f"{tally.counts[each]:>18}" for each in Fate), f"{tally.share:>8.1%}"])


def _line(mutant: Mutant) -> str:
    return f"{mutant.fate.value}: {mutant.change}" + (f" | {mutant.reason}" if mutant.reason else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
