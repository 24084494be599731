"""A query whose checkpointLocation is in an object store: S3A against a server of moto.

Spark writes each entry of its logs under another name and renames it. In an object store that is a copy.
"""

import contextlib
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pyspark
import pytest

from benchmarks.environments import python_environment
from onceward.common.killpoints import KillPoint
from onceward.dev.jars import cache_directory
from onceward.dev.kafka.places import free_ports
from tests.support.processes import JobProcesses, Process, armed_with
from tests.support.stream_queries import NAMED_STATE, VISITS, expected, feed, records
from tests.support.topics import Topics, abort_with_the_brokers_tool, open_transactions_hold_back
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600)]

SERVER = ("moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5")
"""In an environment of its own: it needs an older python-dateutil than we have."""
SDK = "2.35.4"
"""The version that Hadoop 3.5.0 was built with."""
PACKAGES = (
    *(f"software.amazon.awssdk:{part}:{SDK}" for part in ("s3", "sts", "s3-transfer-manager")),
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
)
"""What S3A loads of its dependencies."""
EXCLUDED = (
    "software.amazon.awssdk:bundle",  # the whole SDK, 650 MB
    "org.slf4j:slf4j-api",  # Spark has these
    "commons-logging:commons-logging",
    *(f"io.netty:netty-{part}" for part in ("buffer", "codec", "codec-http", "codec-http2", "common", "handler")),
    *(f"io.netty:netty-{part}" for part in ("resolver", "transport", "transport-classes-epoll")),
)
BUCKET = "state"
LIMIT_S = 1200.0
"""Limit for one life, the first of which may have to fetch S3A; only a stalled machine needs it."""


def served(here: JobProcesses) -> str:
    """Start a server with a bucket; return its address."""
    (ports,) = free_ports(1, None)
    python = str(python_environment("moto", SERVER))
    server = here.start("store", [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(ports.client)], {})
    address = f"http://127.0.0.1:{ports.client}"

    def has_the_bucket() -> bool:
        assert server.running, server.tail()
        made = urllib.request.Request(f"{address}/{BUCKET}", method="PUT")
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(made) as answer:
            return bool(answer.status == 200)
        return False

    wait_until(has_the_bucket, "the server has made the bucket", LIMIT_S)
    return address


def s3a(address: str) -> str:
    """Arguments of spark-submit."""
    (client,) = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    hadoop = client.stem.rpartition("-")[2]
    conf = {
        "spark.jars.packages": ",".join((f"org.apache.hadoop:hadoop-aws:{hadoop}", *PACKAGES)),
        "spark.jars.excludes": ",".join(EXCLUDED),
        "spark.jars.ivy": cache_directory() / "ivy",
        "spark.hadoop.fs.s3a.endpoint": address,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.access.key": "any",
        "spark.hadoop.fs.s3a.secret.key": "any",
    }
    return " ".join(f"--conf {name}={value}" for name, value in conf.items())


def test_a_query_with_its_checkpoint_location_in_an_object_store_writes_each_batch_once_over_kills(
    topics: Topics, job: str, tmp_path: Path
) -> None:
    """It is killed at each kill point of a batch. After one of them the decided transactions are lost: the next lives
    write them again."""
    files, source, topic = records(12), tmp_path / "input", topics.create("totals", 2)
    feed(source, files)
    with JobProcesses(tmp_path, job, topics.servers, str(source), topic) as here:
        here.spec |= {"checkpoint": f"s3a://{BUCKET}/totals", "session": NAMED_STATE}
        environment = {"PYSPARK_SUBMIT_ARGS": f"{s3a(served(here))} pyspark-shell"}

        def life(*kill_at: str) -> Process:
            armed = armed_with(kill_at, tmp_path / "kills")
            return here.start_driver("driver", "tests.support.stream_queries", here.spec, {**environment, **armed})

        for point, visit in VISITS:
            here.wait_for_kill(point, visit, life(f"{point.value}:{visit}"), LIMIT_S)
            if point is KillPoint.DRIVER_AFTER_DECISION:
                for partition, withheld in open_transactions_hold_back(topics.servers, topic).items():
                    if withheld:
                        abort_with_the_brokers_tool(topics.servers, topic, partition)
        last = life()
        assert last.wait(LIMIT_S) == 0, last.tail()
        assert here.events("replayed")
    assert not (tmp_path / "checkpoint").exists()
    assert Counter((key, value) for _, _, key, value in topics.read(topic)) == expected(files)
