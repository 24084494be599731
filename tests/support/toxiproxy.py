"""The server of toxiproxy, or the reason to skip a test that needs it."""

import pytest

from onceward.dev.toxiproxy import ToxiproxyError, toxiproxy_server

__all__ = ["toxiproxy_or_skip"]


def toxiproxy_or_skip() -> None:
    """Build the server, or skip the test where that is impossible: without Go."""
    try:
        toxiproxy_server()
    except ToxiproxyError as error:
        pytest.skip(str(error))
