"""``make explore``: the whole search, with progress; exit code 1 and a scenario when an invariant is broken."""

import sys

from tests.explorer.report import scenario, summary
from tests.explorer.search import Result, explore
from tests.explorer.world import Bounds


def main() -> int:
    def progress(result: Result) -> None:
        print(summary(result), file=sys.stderr, flush=True)

    result = explore(Bounds(), progress=progress)
    print(summary(result))
    if result.broken is not None:
        print(scenario(result.broken))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
