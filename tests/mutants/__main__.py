"""``make mutants``: breaks the product in every way in turn and reports what caught it. Exit code 1 if any check
fails."""

import multiprocessing
import sys
import time
from itertools import chain

from tests.mutants.runner import HUNTS, MUTANTS, Report, hunt_clean, hunt_mutant

__all__ = ["main"]

_WIDTHS = (86, 36, 14, 6)


def main(words: list[str]) -> int:
    """Hunt the mutants whose names contain all ``words``, and run each hunt also on the unbroken product."""
    began = time.monotonic()
    chosen = [name for name in MUTANTS if all(word in name for word in words)]
    hunts = [name for name in HUNTS if any(MUTANTS[mutant].hunt.name == name for mutant in chosen)]
    _row("mutant", "hunted by", "looked at", "s", "invariant")
    failed: list[Report] = []
    # Not fork: a mutant must not inherit what another one left in the parent.
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        reports = pool.imap(hunt_mutant, chosen)
        clean = pool.imap(hunt_clean, hunts)
        for report in chain(reports, clean):
            found = report.finding
            invariant = "-" if found is None else f"{found.invariant.name}: {found.invariant.value}"
            _row(report.name, report.hunt, found.effort if found else "all", f"{report.seconds:.1f}", invariant)
            if report.problem is not None:
                failed.append(report)
    for report in failed:
        print(f"FAILED: {report.name}: {report.problem}")
    print(f"{len(chosen)} mutants, {len(hunts)} hunts, {len(failed)} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def _row(*cells: str) -> None:
    columns = [cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False)]
    print(*columns, *cells[len(_WIDTHS) :], sep=" | ", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
