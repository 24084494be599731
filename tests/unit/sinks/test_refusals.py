"""Each code that the brokers may answer to Produce has its sentence."""

from typing import cast

import pytest
from confluent_kafka import KafkaError

from onceward import KafkaCluster
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.driver import refusals
from onceward.sinks.kafka.driver.refusals import CODES, Output, explain
from onceward.sinks.kafka.errors import ControlPlaneError

ANSWERS = {
    *("UNKNOWN", "INVALID_MSG", "UNKNOWN_TOPIC_OR_PART", "MSG_SIZE_TOO_LARGE", "TOPIC_EXCEPTION", "INVALID_TIMESTAMP"),
    *("RECORD_LIST_TOO_LARGE", "NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "INVALID_REQUIRED_ACKS"),
    *("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    *("UNSUPPORTED_VERSION", "INVALID_REQUEST", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "POLICY_VIOLATION", "INVALID_RECORD"),
    *("OUT_OF_ORDER_SEQUENCE_NUMBER", "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE", "INVALID_PRODUCER_ID_MAPPING"),
    *("CONCURRENT_TRANSACTIONS", "TRANSACTION_COORDINATOR_FENCED", "UNKNOWN_PRODUCER_ID", "PRODUCER_FENCED"),
    *("TRANSACTION_ABORTABLE", "KAFKA_STORAGE_ERROR", "UNSUPPORTED_COMPRESSION_TYPE", "UNKNOWN_TOPIC_ID"),
    *("_MSG_TIMED_OUT", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_FENCED"),
}
"""With which a record can come back: what brokers answer to Produce, and the client's own."""
REPEATED = {
    *("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "REQUEST_TIMED_OUT", "BROKER_NOT_AVAILABLE"),
    *("REPLICA_NOT_AVAILABLE", "NETWORK_EXCEPTION", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"),
    *("NOT_COORDINATOR", "LISTENER_NOT_FOUND", "FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH"),
    *(
        "DUPLICATE_SEQUENCE_NUMBER",
        "THROTTLING_QUOTA_EXCEEDED",
        "_TRANSPORT",
        "_TIMED_OUT",
        "_TIMED_OUT_QUEUE",
        "_RETRY",
    ),
    *("_QUEUE_FULL", "_WAIT_COORD", "_WAIT_CACHE", "_RESOLVE", "_ALL_BROKERS_DOWN"),
}
"""The client repeats the request, or has what it wanted; if that takes too long, the record has timed out."""
BEHIND_ANOTHER = {"_PURGE_QUEUE", "_PURGE_INFLIGHT", "_FATAL", "_STATE"}
"""What the records after the refused one get: the message names the first refusal."""
OF_OTHER_REQUESTS = {
    *("OFFSET_OUT_OF_RANGE", "INVALID_MSG_SIZE", "STALE_CTRL_EPOCH", "OFFSET_METADATA_TOO_LARGE", "SECURITY_DISABLED"),
    *(
        "ILLEGAL_GENERATION",
        "INCONSISTENT_GROUP_PROTOCOL",
        "INVALID_GROUP_ID",
        "UNKNOWN_MEMBER_ID",
        "RESOURCE_NOT_FOUND",
    ),
    *("INVALID_SESSION_TIMEOUT", "REBALANCE_IN_PROGRESS", "INVALID_COMMIT_OFFSET_SIZE", "GROUP_AUTHORIZATION_FAILED"),
    *("UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE", "SASL_AUTHENTICATION_FAILED", "TOPIC_ALREADY_EXISTS"),
    *("INVALID_PARTITIONS", "INVALID_REPLICATION_FACTOR", "INVALID_REPLICA_ASSIGNMENT", "INVALID_CONFIG"),
    *("NOT_CONTROLLER", "INVALID_TRANSACTION_TIMEOUT", "OPERATION_NOT_ATTEMPTED", "LOG_DIR_NOT_FOUND"),
    *("REASSIGNMENT_IN_PROGRESS", "DELEGATION_TOKEN_AUTH_DISABLED", "DELEGATION_TOKEN_NOT_FOUND"),
    *("DELEGATION_TOKEN_OWNER_MISMATCH", "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", "DELEGATION_TOKEN_EXPIRED"),
    *("DELEGATION_TOKEN_AUTHORIZATION_FAILED", "INVALID_PRINCIPAL_TYPE", "NON_EMPTY_GROUP", "GROUP_ID_NOT_FOUND"),
    *("FETCH_SESSION_ID_NOT_FOUND", "INVALID_FETCH_SESSION_EPOCH", "TOPIC_DELETION_DISABLED", "STALE_BROKER_EPOCH"),
    *("OFFSET_NOT_AVAILABLE", "MEMBER_ID_REQUIRED", "PREFERRED_LEADER_NOT_AVAILABLE", "GROUP_MAX_SIZE_REACHED"),
    *("FENCED_INSTANCE_ID", "ELIGIBLE_LEADERS_NOT_AVAILABLE", "ELECTION_NOT_NEEDED", "NO_REASSIGNMENT_IN_PROGRESS"),
    *("GROUP_SUBSCRIBED_TO_TOPIC", "UNSTABLE_OFFSET_COMMIT", "DUPLICATE_RESOURCE", "UNACCEPTABLE_CREDENTIAL"),
    *("INCONSISTENT_VOTER_SET", "INVALID_UPDATE_VERSION", "FEATURE_UPDATE_FAILED", "INCONSISTENT_TOPIC_ID"),
    *("PRINCIPAL_DESERIALIZATION_FAILURE", "FENCED_MEMBER_EPOCH", "UNRELEASED_INSTANCE_ID", "UNSUPPORTED_ASSIGNOR"),
    *("STALE_MEMBER_EPOCH", "MISMATCHED_ENDPOINT_TYPE", "UNSUPPORTED_ENDPOINT_TYPE", "UNKNOWN_CONTROLLER_ID"),
    *("UNKNOWN_SUBSCRIPTION_ID", "TELEMETRY_TOO_LARGE", "INVALID_REGISTRATION", "INVALID_RECORD_STATE"),
    *("SHARE_SESSION_NOT_FOUND", "INVALID_SHARE_SESSION_EPOCH", "FENCED_STATE_EPOCH", "INVALID_VOTER_KEY"),
    *("DUPLICATE_VOTER", "VOTER_NOT_FOUND", "INVALID_REGULAR_EXPRESSION", "REBOOTSTRAP_REQUIRED"),
    *("STREAMS_INVALID_TOPOLOGY", "STREAMS_INVALID_TOPOLOGY_EPOCH", "STREAMS_TOPOLOGY_FENCED"),
    "SHARE_SESSION_LIMIT_REACHED",
}


def codes() -> dict[str, int]:
    """All codes that the client library knows, by their names in messages."""
    known = {name: getattr(KafkaError, name) for name in dir(KafkaError)}
    return {name: number for name, number in known.items() if isinstance(number, int) and number}


def test_every_code_of_the_client_is_explained_repeated_or_no_answer_to_a_record() -> None:
    """A code that a later release adds has to be sorted here."""
    sorts = (ANSWERS, REPEATED, BEHIND_ANOTHER, OF_OTHER_REQUESTS)
    assert sum(map(len, sorts)) == len(set().union(*sorts))
    of_brokers = {name for name in codes() if not name.startswith("_")}
    sorted_out = {name for name in set().union(*sorts) if not name.startswith("_")}
    assert of_brokers == sorted_out
    assert {name for name in ANSWERS | REPEATED | BEHIND_ANOTHER if name.startswith("_")} <= codes().keys()
    assert CODES.keys() == ANSWERS


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Output:
    """Brokers that do not answer: the sentence must come all the same."""

    def silent(*_: object) -> object:
        raise ControlPlaneError("no answer")

    monkeypatch.setattr(refusals, "settings", silent)
    monkeypatch.setattr(refusals, "topic_facts", silent)
    monkeypatch.setattr(refusals, "topic_limits", lambda *_: ())
    return Output(cast(ControlPlane, None), KafkaCluster("localhost:1"), ("orders-eur",))


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_each_refusal_has_a_sentence_with_topic_and_remedy(name: str, output: Output) -> None:
    error = KafkaError(codes()[name])
    assert error.name() == name
    found = explain(output, f"Transaction x was not delivered: 3 records were refused: {error}.")
    assert found is not None
    assert "KafkaError" not in found.text
    assert ". " in found.text, "a remedy"
    assert not found.text.endswith(".")


def test_other_failures_are_not_explained(output: Output) -> None:
    assert explain(output, "ValueError: x") is None
    assert explain(output, f"cannot continue: {KafkaError(KafkaError._STATE)}") is None
