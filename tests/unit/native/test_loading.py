"""The other tests here are skipped where the library does not load, so it must load where it can be built."""

import os
import shutil

import pytest


def test_the_library_loads_on_a_machine_with_a_compiler() -> None:
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler; install gcc and libc6-dev")
    import onceward_native

    assert {"none", "snappy"} <= {*onceward_native.compressions()}
