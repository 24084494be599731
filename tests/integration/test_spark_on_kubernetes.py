"""Spark in client mode with the settings, the role and the executors' template of deploy/kubernetes/job: a stand-in
of Kubernetes starts executors as processes, and allows what the role allows."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from onceward.dev.kafka.places import free_ports
from onceward.dev.managed_process import OURS
from tests.support.kubernetes_api import kubernetes
from tests.support.manifests import config_map, find
from tests.support.processes import spark_variables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DRIVER = """
import os
from pyspark.sql import SparkSession
spark = SparkSession.builder.appName("flights").getOrCreate()
context = spark.sparkContext
rows = context.parallelize(range(1000), 4).map(lambda n: (n, os.environ["SPARK_EXECUTOR_POD_NAME"])).collect()
print("sum", sum(n for n, _ in rows), "on", *sorted({name for _, name in rows}))
spark.stop()
"""


def test_executors_start_from_the_template_with_the_rights_of_the_role(tmp_path: Path) -> None:
    driver, blocks = (ports.client for ports in free_ports(2, None))
    keys = config_map("job")[1]
    for name, text in keys.items():
        (tmp_path / name).write_text(text)
    image = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": OURS,
        "SPARK_LOCAL_IP": "127.0.0.1",
        **spark_variables(tmp_path),
    }
    with (
        kubernetes(find("Role", "job").content["rules"], tmp_path / "pods", image) as here,
        TemporaryDirectory() as short,  # a socket's path has at most 107 characters
    ):
        # what differs here; the last line for a name counts
        (tmp_path / "spark-defaults.conf").write_text(
            keys["spark-defaults.conf"]
            + f"spark.master k8s://{here.address}\n"
            + "spark.driver.host 127.0.0.1\nspark.driver.bindAddress 127.0.0.1\n"
            + f"spark.driver.port {driver}\nspark.driver.blockManager.port {blocks}\n"
            + f"spark.kubernetes.executor.podTemplateFile {tmp_path}/executor.yaml\n"
            + f"spark.python.unix.domain.socket.dir {short}\n"
            + "spark.executor.instances 1\nspark.executor.memory 512m\nspark.ui.enabled false\n"
        )
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        own = {"name": "flights-x", "namespace": "orders", "uid": "1"}
        here.put({"kind": "Pod", "apiVersion": "v1", "metadata": own, "spec": {"containers": []}, "status": ready})
        ran = subprocess.run(
            [sys.executable, "-c", DRIVER],
            env={
                **os.environ,
                **image,
                "SPARK_CONF_DIR": str(tmp_path),
                "POD_NAME": "flights-x",
                "POD_NAMESPACE": "orders",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        logs = "\n".join(log.read_text() for log in here.directory.glob("*/log"))
        assert ran.returncode == 0, ran.stderr + logs
        (started,) = here.processes
        assert f"sum 499500 on {started}" in ran.stdout, ran.stdout + ran.stderr + logs
        assert set(here.requests) <= here.allowed, ran.stderr
        assert not here.pods.keys() - {"flights-x"}, "the driver removes its executors"
