"""The simulation's model of Kafka answers like a real broker: the same scripts run on both, compared line by line.

Transient states (PrepareCommit, PrepareAbort) last as long as they last on a real broker, so both sides wait for the
next state; unit tests of the model check the transient ones.
"""

from collections.abc import Iterator

import pytest

from onceward.dev.kafka import LocalKafka
from tests.integration.kafka_model_contract.broker_side import BrokerSide
from tests.integration.kafka_model_contract.model_side import ModelSide
from tests.integration.kafka_model_contract.scripts import SCRIPTS, Script
from tests.integration.kafka_model_contract.stage import Stage
from tests.integration.kafka_model_contract.walks import walk

WALKS = 20


@pytest.fixture(scope="module")
def older_kafka() -> Iterator[LocalKafka]:
    """A broker at transaction.version 1."""
    with LocalKafka(transaction_version=1, transaction_timeout_scan_ms=200, heap="256m") as local:
        yield local


@pytest.fixture(params=[2, 1], ids=["cluster-2", "cluster-1"])
def cluster(request: pytest.FixtureRequest) -> int:
    """The cluster's transaction.version."""
    return int(request.param)


@pytest.fixture
def broker(cluster: int, job: str, request: pytest.FixtureRequest) -> Iterator[BrokerSide]:
    local: LocalKafka = request.getfixturevalue("kafka" if cluster == 2 else "older_kafka")
    side = BrokerSide(local.bootstrap_servers, f"{job}.")
    yield side
    side.close()


@pytest.mark.parametrize("end_txn", [5, 4], ids=["end-v5", "end-v4"])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_the_model_answers_like_the_broker(script: Script, cluster: int, broker: BrokerSide, end_txn: int) -> None:
    """Cover also the EndTxn version that the product would not choose on the cluster."""
    modelled, real = Stage(ModelSide(cluster), end_txn), Stage(broker, end_txn)
    script(modelled)
    script(real)
    assert modelled.lines == real.lines


@pytest.mark.parametrize("seed", range(WALKS))
def test_the_model_answers_like_the_broker_whatever_is_asked(seed: int, cluster: int, broker: BrokerSide) -> None:
    modelled, real = Stage(ModelSide(cluster), 5), Stage(broker, 5)
    walk(modelled, seed)
    walk(real, seed)
    assert modelled.lines == real.lines
