"""The model of Kafka answers like real brokers after ends without markers: the same scripts run on both."""

from collections.abc import Iterator

import pytest

from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka.versions import broker_version
from tests.integration.kafka_model_contract.broker_side import AWAY, ThreeBrokersSide
from tests.integration.kafka_model_contract.model_side import ModelSide
from tests.integration.kafka_model_contract.scripts import Script
from tests.integration.kafka_model_contract.stage import Stage
from tests.integration.kafka_model_contract.unmarked_scripts import LOST_GROUPS, UNMARKED_SCRIPTS

pytestmark = [
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(broker_version() in ("3.9", "4.0"), reason="these brokers wait for the leader"),
]


@pytest.fixture(params=[2, 1], ids=["cluster-2", "cluster-1"], scope="module")
def brokers(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    """Brokers at a transaction.version."""
    alone = {"offsets.topic.replication.factor": "1", "min.insync.replicas": "1"}
    with LocalKafka(
        3, transaction_version=request.param, transaction_timeout_scan_ms=200, heap="256m", properties=alone
    ) as local:
        yield local


@pytest.fixture
def side(brokers: LocalKafka, job: str) -> Iterator[ThreeBrokersSide]:
    side = ThreeBrokersSide(brokers, job, LOST_GROUPS)
    yield side
    side.close()
    if AWAY not in brokers.pids:
        brokers.restart(AWAY)


@pytest.mark.parametrize("script", UNMARKED_SCRIPTS, ids=lambda script: script.__name__)
def test_the_model_answers_like_the_brokers_after_ends_without_markers(
    script: Script, brokers: LocalKafka, side: ThreeBrokersSide
) -> None:
    end_txn = 5 if brokers.transaction_version >= 2 else 4
    modelled, real = Stage(ModelSide(brokers.transaction_version), end_txn), Stage(side, end_txn)
    script(modelled)
    script(real)
    assert modelled.lines == real.lines
