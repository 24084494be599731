"""The error of a call that cannot be made."""

from typing import Any, cast

import pytest

from onceward.client.calls import Caller
from onceward.common.errors import CoordinatorLostError, StoreError


def test_a_store_failure_is_reported_in_whole_sentences() -> None:
    failure = StoreError("The store failed. Look at the disk's space and health.")
    caller = Caller(cast(Any, None), "localhost:1", patience_s=1.0, broken=lambda: failure)
    with pytest.raises(CoordinatorLostError) as lost:
        caller.require_working("renewing the lease")
    assert "space and health. Whether" in str(lost.value)
