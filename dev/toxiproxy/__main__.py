"""``python -m onceward.dev.toxiproxy``: build the server if necessary, and print its path."""

import sys

from onceward.dev.errors import ToxiproxyError
from onceward.dev.toxiproxy.binary import toxiproxy_server


def main() -> int:
    try:
        print(toxiproxy_server())
    except ToxiproxyError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
