"""``python -m onceward.dev.postgres``: fetch PostgreSQL if necessary and if there is one for this machine,
and print its directory."""

import sys

from onceward.dev.errors import LocalServerError
from onceward.dev.jars import fetch_progress
from onceward.dev.postgres.binaries import is_offered, postgres_programs


def main() -> int:
    if not is_offered():
        return 0
    try:
        print(postgres_programs(fetch_progress("PostgreSQL's")))
    except LocalServerError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
