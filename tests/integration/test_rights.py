"""A whole job under a rights file: a real pipeline with a token, on a real broker. The token is a canary."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onceward import KafkaSink, KafkaSource, Pipeline
from onceward.client.operators import OperatorClient
from onceward.common.errors import ConfigurationError, RefusedError
from onceward.operate.token import make_token
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName
from tests.support.peers import PeerFiles
from tests.support.scripted import CoordinatorProcess
from tests.support.shared_kafka import SharedKafka
from tests.support.topics import Topics, assert_exactly_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

RIGHTS = """
[peers.driver]
{token}
drive = ["{job}"]
"""


def test_a_job_runs_with_its_token_which_is_found_nowhere(
    kafka: SharedKafka,
    topics: Topics,
    job: str,
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", logger="onceward")
    secret = tmp_path / "secret"
    secret.mkdir()
    capfd.readouterr()
    make_token(secret / "token")
    line = capfd.readouterr().out
    token = (secret / "token").read_text().strip()
    files = PeerFiles(tmp_path / "files")
    files.grant(RIGHTS.format(token=line, job=job))
    server = files.server_tls(client_ca=False)
    options = ["--tls-cert", str(server.certificate), "--tls-key", str(server.key), "--rights", str(files.rights)]
    process = CoordinatorProcess(tmp_path / "coordinator", options=options)
    events = tmp_path / "events"
    monkeypatch.setenv("ONCEWARD_EVENTS", str(events))
    inputs, outputs = topics.create("in"), topics.create("out")
    topics.fill(inputs, [b"%d" % number for number in range(20)], key=b"k")

    def pipeline(name: str, reference: str | None) -> Pipeline:
        return Pipeline(
            job=name,
            source=KafkaSource(kafka.bootstrap_servers, topics=[inputs], start="earliest", end="latest"),
            transform=lambda df: df.where("value is not null"),
            sink=KafkaSink(kafka.bootstrap_servers, topic=outputs),
            coordinator=process.address,
            tls=files.client_tls(),
            token=reference,
            settings=CheckpointSettings(interval="50ms"),
            spark=spark,
        )

    with pytest.raises(ConfigurationError, match="Use env:NAME or file:PATH") as raised:
        pipeline(job, token)
    assert token not in str(raised.value)
    try:
        process.wait_ready()
        reference = f"file:{secret}/token"
        with pytest.raises(RefusedError, match="UNAUTHENTICATED: the peer is unknown"):
            pipeline(job, None).run()
        with pytest.raises(RefusedError, match=f"driver lacks the right drive for job {job}-2"):
            pipeline(f"{job}-2", reference).run()
        ran = pipeline(job, reference)
        assert ran.run() is CloseReason.FINISHED
        monkeypatch.setenv("ONCEWARD_TOKEN", reference)
        monkeypatch.setenv("ONCEWARD_TLS_CA", str(files.ca))
        with OperatorClient(process.address) as people:
            shown = repr((people.jobs(), people.history(JobName(job), 100), people.generations(JobName(job))))
            with pytest.raises(RefusedError, match=f"driver lacks the right operate for job {job}"):
                people.stop(JobName(job))
    finally:
        process.end()
    assert_exactly_once(topics, inputs, outputs)
    printed = capfd.readouterr()
    configured = repr(spark.sparkContext.getConf().getAll())
    assert token not in printed.out + printed.err + caplog.text + shown + configured + repr(vars(ran))
    found = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != secret]
    assert {events, process.log, tmp_path / "coordinator" / "store.db"} <= set(found)
    assert not any(token.encode() in path.read_bytes() for path in found)
