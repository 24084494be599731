"""``onceward serve --metrics`` and ``--log-format json``, as processes."""

import json
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.client.tls import CoordinatorTls
from onceward.common.errors import ExitCode
from onceward.protocol.answers import Verdict
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName
from tests.support.commands import onceward_process
from tests.support.peers import PeerFiles
from tests.support.scraped import scrape
from tests.support.scripted import SETTINGS, SINK, CoordinatorProcess, ScriptedDriver
from tests.support.waiting import wait_until
from tests.unit.test_printable import texts

pytestmark = pytest.mark.slow

FORGED = 'x" event=completed\n{"event": "forged"}\x1b[2J'


@contextmanager
def serving(directory: Path, *options: str) -> Iterator[CoordinatorProcess]:
    process = CoordinatorProcess(directory, options=options)
    try:
        process.wait_ready()
        wait_until(lambda: "listens on" in process.log.read_text(), "the address is announced")
        yield process
    finally:
        process.end()


def url_of(process: CoordinatorProcess) -> str:
    found = re.search(r"metrics are at (\S+)", process.log.read_text())
    assert found is not None, process.tail()
    return found[1]


def test_a_coordinator_shows_its_jobs_and_a_forgotten_one_leaves(tmp_path: Path) -> None:
    on_demand = CheckpointSettings(interval=None)
    with (
        serving(tmp_path / "here", "--metrics", "127.0.0.1:0") as process,
        connect(process.address) as client,
        OperatorClient(process.address) as people,
    ):
        for job in ("orders", "bills"):
            driver = ScriptedDriver(client, JobName(job), settings=on_demand)
            driver.wait_committed(1)
            driver.close()
        before = scrape(url_of(process))
        assert before.value("onceward_checkpoints_total", job_name="orders", result="completed") == 1
        assert before.labels("onceward_job_status") == {"orders", "bills"}
        assert people.forget(JobName("orders"), "test").verdict is Verdict.ACCEPTED
        assert scrape(url_of(process)).labels("onceward_job_status") == {"bills"}


def test_a_coordinator_with_rights_says_that_its_metrics_know_none(tmp_path: Path) -> None:
    files = PeerFiles(tmp_path / "peers")
    tls = files.server_tls(client_ca=False)
    files.grant(f'[peers.some]\ntokens = ["sha256:{"0" * 64}"]\nview = ["orders"]\n')
    own = ("--tls-cert", str(tls.certificate), "--tls-key", str(tls.key), "--metrics", "127.0.0.1:0")
    for name, more, said in (("all", (), False), ("some", ("--rights", str(files.rights)), True)):
        with serving(tmp_path / name, *own, *more) as process:
            assert ("show all jobs, whatever --rights says" in process.log.read_text()) is said


def test_with_tls_the_metrics_have_the_same_certificates_and_their_expiry(tmp_path: Path) -> None:
    ca = trustme.CA()
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=5)
    own, client = ca.issue_cert("127.0.0.1", not_after=until), ca.issue_cert("client.example")
    files = {name: tmp_path / name for name in ("own.pem", "own.key", "ca.pem", "client.pem", "client.key")}
    own.cert_chain_pems[0].write_to_path(str(files["own.pem"]))
    own.private_key_pem.write_to_path(str(files["own.key"]))
    client.cert_chain_pems[0].write_to_path(str(files["client.pem"]))
    client.private_key_pem.write_to_path(str(files["client.key"]))
    ca.cert_pem.write_to_path(str(files["ca.pem"]))
    given = ["--tls-cert", files["own.pem"], "--tls-key", files["own.key"], "--client-ca", files["ca.pem"]]
    options = [*map(str, given), "--metrics", "127.0.0.1:0"]
    context = ssl.create_default_context(cafile=str(files["ca.pem"]))
    with serving(tmp_path / "here", *options) as process:
        with pytest.raises(OSError):  # noqa: PT011 - it differs between versions of TLS
            scrape(url_of(process), context)
        context.load_cert_chain(files["client.pem"], files["client.key"])
        found = scrape(url_of(process), context)
        assert found.value("onceward_certificate_expiry_timestamp_seconds", file="tls-cert") == until.timestamp()
        assert found.value("onceward_certificate_expiry_timestamp_seconds", file="client-ca") > until.timestamp()
        tls = CoordinatorTls(ca=files["ca.pem"], certificate=files["client.pem"], key=files["client.key"])
        with OperatorClient(process.address, tls=tls) as people:
            assert people.jobs() == []


def test_an_address_of_others_is_refused_before_anything_starts(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    result = onceward_process("serve", "--listen", "127.0.0.1:0", "--store", store, "--metrics", "0.0.0.0:0")
    assert result.returncode == ExitCode.USAGE
    assert "can be reached from other machines" in result.stderr
    assert not (tmp_path / "store.db").exists()


def test_each_line_of_the_log_is_one_object_and_no_text_forges_another(tmp_path: Path) -> None:
    with serving(tmp_path / "here", "--log-format", "json") as process:
        with connect(process.address) as client:
            driver = ScriptedDriver(client, JobName("orders"), settings=SETTINGS)
            driver.wait_committed(2)
            driver.session.decline(max(driver.runs), SINK.name, FORGED)
            driver.session.abandon(FORGED)
        wait_until(lambda: "forged" in process.log.read_text(), "the reason is logged")
    lines = [line for line in process.log.read_text().splitlines() if "listens on" not in line]
    logged = [json.loads(line) for line in lines]
    assert all(
        set(line) == {"time", "level", "logger", "event", "job", "fields", "detail"} and line["event"] != "forged"
        for line in logged
    )
    assert not any("event=" in line["detail"] for line in logged if line["event"] is None)
    leads = next(line for line in logged if line["event"] == "leads")
    assert set(leads["fields"]) == {"store", "term", "address"}
    granted = next(line for line in logged if line["event"] == "granted")
    assert (granted["level"], granted["logger"], granted["job"]) == ("info", "onceward.coordinator", "orders")
    assert granted["fields"] == {"generation": 1, "participants": "source,sink"}
    assert datetime.fromisoformat(granted["time"]).tzinfo is not None
    assert not any("\x1b" in line for line in lines)
    said = [text for line in logged for text in texts(line) if "forged" in text]
    assert said
    assert not any("\x1b" in text for text in said)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    result = onceward_process("serve", "--store", store, "--log-format", "xml")
    assert result.returncode == ExitCode.USAGE
    assert "Use text or json" in result.stderr
