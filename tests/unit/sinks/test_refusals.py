"""Each code that the brokers may answer to Produce has its sentence."""

from typing import cast

import pytest
from confluent_kafka import KafkaError

from onceward import KafkaCluster
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.driver import refusals
from onceward.sinks.kafka.driver.refusals import CODES, Output, explain
from onceward.sinks.kafka.errors import ControlPlaneError

REFUSALS = {
    *(
        KafkaError.INVALID_MSG,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.RECORD_LIST_TOO_LARGE,
    ),
    *(KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, KafkaError.INVALID_RECORD),
    *(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT, KafkaError.POLICY_VIOLATION),
    *(KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    *(KafkaError.INVALID_TIMESTAMP, KafkaError.UNSUPPORTED_COMPRESSION_TYPE, KafkaError.KAFKA_STORAGE_ERROR),
    *(KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION),
    KafkaError._MSG_TIMED_OUT,
}
"""What the documentation of Kafka's ProduceResponse lists and a person can mend, and the client's own. The codes of a
transaction that another program or the brokers ended are not among them: the checkpoint is written again."""


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Output:
    """Brokers that do not answer: the sentence must come all the same."""

    def silent(*_: object) -> object:
        raise ControlPlaneError("no answer")

    monkeypatch.setattr(refusals, "settings", silent)
    monkeypatch.setattr(refusals, "topic_facts", silent)
    monkeypatch.setattr(refusals, "batch_limits", lambda *_: ())
    return Output(cast(ControlPlane, None), KafkaCluster("localhost:1"), ("orders-eur",))


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_each_refusal_has_a_sentence_with_topic_and_remedy(code: int, output: Output) -> None:
    error = KafkaError(code)
    assert error.name() in CODES
    found = explain(output, f"Transaction x was not delivered: 3 records were refused: {error}.")
    assert found is not None
    assert "KafkaError" not in found.text
    assert ". " in found.text, "a remedy"
    assert not found.text.endswith(".")


def test_other_failures_are_not_explained(output: Output) -> None:
    assert explain(output, "ValueError: x") is None
    assert explain(output, f"cannot continue: {KafkaError(KafkaError._STATE)}") is None
