"""What a start says when the brokers refuse its claim."""

import pytest

from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.control.claim_offsets import failed


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, "Raise the brokers' offset.metadata.max.bytes to at least "),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Grant READ on Topic 'onceward'."),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Grant READ on Group prefix 'orders.'."),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Grant WRITE on TransactionalId prefix 'orders.'."),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "Check the brokers, and that topic 'onceward' exists."),
    ],
)
def test_a_refused_claim_names_the_code_and_what_to_change(code: ErrorCode, remedy: str) -> None:
    said = str(failed("write", "orders", code))
    assert said.startswith(f"Could not write the claim of job orders: {code.value} {code.name}")
    assert "No data was changed" in said
    assert remedy in said
