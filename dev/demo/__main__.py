"""``python -m onceward.dev.demo``: the demo without the command line's environment."""

import argparse
import sys
from pathlib import Path

from onceward.dev.demo.run import run_demo


def main() -> int:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(description="real records, exactly once, while processes are killed")
    parser.add_argument("--seconds", type=float, default=90.0, help="how long the flights are fed")
    parser.add_argument("--limit", type=int, help="feed only so many flights")
    parser.add_argument("--keep", type=Path, help="a new directory for logs and store, kept")
    arguments = parser.parse_args()
    return run_demo(seconds=arguments.seconds, limit=arguments.limit, keep=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
