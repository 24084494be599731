"""``make explore``: searches all worlds in two processes. Exit code 1 and a scenario when an invariant is broken."""

import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.explorer.report import scenario, summary
from tests.explorer.search import Result, explore
from tests.explorer.ways_out import explore_ways_out
from tests.explorer.world import WORLDS

__all__ = ["main"]


def main(names: Iterable[str]) -> int:
    """Search the worlds of these names. Without names, search all of them and the ways out of every situation."""
    chosen = list(names) or list(WORLDS)
    with ProcessPoolExecutor(max_workers=2) as pool:
        ways_out = pool.submit(explore_ways_out) if chosen == list(WORLDS) else None
        results = list(pool.map(_search, chosen))
    dead_end = False
    if ways_out is not None:
        explored = ways_out.result()
        print(f"ways out: {explored.situations} situations of a checkpoint with two slots\n{explored.scenario}", end="")
        dead_end = explored.violation is not None
    for name, result in zip(chosen, results, strict=True):
        print(f"{name}: {summary(result)}\n  {result.bounds}")
        if result.broken is not None:
            print(scenario(result.broken))
    return 1 if dead_end or any(result.broken is not None for result in results) else 0


def _search(name: str) -> Result:
    return explore(WORLDS[name], progress=partial(_tell, name))


def _tell(name: str, result: Result) -> None:
    print(f"{name}: {summary(result)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
