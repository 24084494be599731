"""What a driver's metrics show of its journal."""

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import pytest
import trustme

from onceward.client.access import CoordinatorAccess
from onceward.client.tls import CoordinatorTls
from onceward.common.links import Links
from onceward.driver.journal import Journal
from onceward.driver.measuring import measure
from onceward.watch.metrics.driver import DRIVER_METRICS, DriverMetrics
from onceward.watch.metrics.endpoint import MetricsEndpoint
from onceward.watch.metrics.registry import Registry
from tests.support.scraped import Scraped


class Driver:
    """The journal of a job and its metrics."""

    def __init__(self, certificate: Path) -> None:
        self.registry, self.links, self.clock = Registry(), Links(), 100.0
        self.metrics = DriverMetrics(
            "orders",
            self.registry,
            self.links,
            certificate=certificate,
            wall=lambda: 12.5,
            monotonic=lambda: self.clock,
        )
        self.journal = Journal("orders", self.metrics.event)

    def shown(self) -> Scraped:
        return Scraped({family.name: family for family in self.registry.collect()})

    def pre_commit(self, **more: object) -> None:
        given = {"checkpoint": 7, "base": 6, "transactions": 2, "read": 100, "written": 90, "bytes": 4000, "lag": 25}
        given["outputs"] = {"eur": {"written": 60, "bytes": 3000}, "lake": {"written": 30, "bytes": 1000}}  # type: ignore[assignment]
        steps = {"plan": 0.25, "read": 0.5}
        self.journal.log("pre-committed", **{**given, "seconds": 1.5, "steps": steps, **more})


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    trustme.CA().issue_cert("client").cert_chain_pems[0].write_to_path(tmp_path / "own.pem")
    return Driver(tmp_path / "own.pem")


def test_a_checkpoint_shows_its_records_bytes_lag_and_steps(driver: Driver) -> None:
    driver.journal.generation = 3
    driver.pre_commit(lag=0)
    driver.pre_commit()
    driver.journal.log("settled", checkpoint=7, transactions=2, steps={"decide": 0.125, "settle": 2.0})
    shown = driver.shown()
    for name, value in {
        "generation": 3,
        "checkpoints_pre_committed_total": 2,
        "checkpoints_settled_total": 1,
        "checkpoints_aborted_total": 0,
        "records_read_total": 200,
        "source_lag_offsets": 25,
        "checkpoint_seconds_sum": 3.0,
        "last_settled_timestamp_seconds": 12.5,
    }.items():
        assert shown.value(f"onceward_driver_{name}", job_name="orders") == value, name
    for output, records, size in (("eur", 120, 6000), ("lake", 60, 2000)):
        assert shown.value("onceward_driver_records_written_total", job_name="orders", output=output) == records
        assert shown.value("onceward_driver_bytes_written_total", job_name="orders", output=output) == size
    for step, seconds in {"plan": 0.5, "read": 1.0, "decide": 0.125, "settle": 2.0}.items():
        assert shown.value("onceward_driver_step_seconds_sum", step=step) == seconds


def test_dead_letters_are_counted_by_class(driver: Driver) -> None:
    driver.journal.log("dead letters", checkpoint=7, letters=5, reasons={"ValueError": 3, "too_large": 2})
    driver.journal.log("dead letters", checkpoint=8, letters=1, reasons={"ValueError": 1})
    found = driver.shown().series("onceward_driver_dead_letters_total", job_name="orders")
    assert {dict(labels)["class"]: value for labels, value in found.items()} == {"ValueError": 4, "too_large": 2}


def test_the_output_whose_commit_lasts_is_shown_until_it_ends(driver: Driver) -> None:
    def lasting() -> dict[str, float]:
        found = driver.shown().series("onceward_driver_output_committing_seconds", job_name="orders")
        return {dict(labels)["output"]: value for labels, value in found.items()}

    driver.pre_commit()
    assert lasting() == {"eur": 0, "lake": 0}
    for output in ("eur", "lake"):
        driver.journal.show("output begins", output=output, step="commit")
    driver.clock += 2
    driver.journal.show("output ends", output="eur", step="commit", seconds=2.0)
    driver.clock += 5
    assert lasting() == {"eur": 0, "lake": 7}
    driver.journal.show("output begins", output="lake", step="pre_commit")
    driver.journal.show("output ends", output="lake", step="pre_commit", seconds=0.5)
    assert lasting() == {"eur": 0, "lake": 7}, "the next checkpoint is pre-committed meanwhile"
    driver.journal.log("failed", reason="secret")
    assert lasting() == {"eur": 0, "lake": 0}
    for output, step, seconds in (("eur", "commit", 2.0), ("lake", "pre_commit", 0.5)):
        assert driver.shown().value("onceward_driver_output_step_seconds_sum", output=output, step=step) == seconds


def test_failures_losses_and_ends_are_counted(driver: Driver) -> None:
    driver.journal.log("aborted", checkpoint=8, transactions=1, reason="secret")
    driver.journal.log("lost", checkpoint=7, transactions=3, policy="replay")
    driver.journal.log("replayed", checkpoint=7, slots=2, transactions=2, written=5, amendment=1, seconds=0.1)
    driver.journal.log("failed", reason="secret")
    driver.journal.log("closed", reason="stopped")
    driver.links.failed("cluster 'secret'", "secret", waiting="secret")
    shown = driver.shown()
    assert shown.value("onceward_driver_checkpoints_aborted_total") == 1
    assert shown.value("onceward_driver_transactions_lost_total") == 3
    assert shown.value("onceward_driver_slots_replayed_total") == 2
    assert shown.value("onceward_driver_generations_ended_total", end="failed") == 1
    assert shown.value("onceward_driver_generations_ended_total", end="closed") == 1
    assert shown.value("onceward_driver_broken_links") == 1
    driver.links.worked("cluster 'secret'")
    assert driver.shown().value("onceward_driver_broken_links") == 0
    assert driver.shown().value("onceward_driver_held_back_seconds") == 0
    driver.links.failed("an open transaction", "secret", waiting="secret", held=True)
    assert driver.shown().value("onceward_driver_broken_links") == 0
    assert driver.shown().value("onceward_driver_held_back_seconds") > 0
    assert "secret" not in str(shown.samples)


def test_what_hangs_and_what_was_finished_is_shown_until_it_is_over(driver: Driver) -> None:
    def shown() -> tuple[float, float]:
        values = driver.shown()
        name = "onceward_driver_hanging_transactions"
        return values.value(name, job_name="orders"), values.value(f"{name}_finished_total", job_name="orders")

    assert shown() == (0, 0)
    for why in ("refused", "refused again"):
        driver.links.hangs("orders.sink.1.0123abcd.0", "readers of out-0", why)
    driver.links.hangs("orders.claim", "the claim", "refused")
    assert shown() == (2, 0)
    driver.links.hangs_no_more("orders.sink.1.0123abcd.0", by_us=True)
    driver.links.hangs_no_more("orders.claim", by_us=False)
    assert shown() == (0, 1)


def test_a_query_has_records_and_no_offsets(driver: Driver) -> None:
    driver.pre_commit(batch=4, read=1)
    shown = driver.shown()
    assert shown.value("onceward_driver_records_written_total", output="eur") == 60
    assert shown.value("onceward_driver_records_read_total") == 0


def test_a_driver_shows_when_its_own_certificate_expires(tmp_path: Path) -> None:
    authority, file = trustme.CA(), tmp_path / "own.pem"
    with ExitStack() as stack:
        access = CoordinatorAccess(address="localhost:7878", tls=CoordinatorTls(ca="ca", certificate=file, key="key"))
        url = measure(stack, MetricsEndpoint("127.0.0.1:0"), "orders", Links(), access).url
        assert url is not None
        for year in (2031, 2032):  # the second replaces the first
            until = datetime(year, 1, 1, tzinfo=UTC)
            authority.issue_cert("client", not_after=until).cert_chain_pems[0].write_to_path(file)
            lines = urlopen(url).read().decode().splitlines()
            shown = [line.split()[1] for line in lines if line.startswith("onceward_driver_certificate_expiry")]
            assert [float(value) for value in shown] == [until.timestamp()]
        file.unlink()
        assert "\nonceward_driver_certificate_expiry" not in urlopen(url).read().decode()


def test_every_described_metric_is_collected_with_its_labels(driver: Driver) -> None:
    driver.pre_commit()
    driver.journal.show("output ends", output="eur", step="commit", seconds=2.0)
    driver.journal.log("dead letters", checkpoint=7, letters=1, reasons={"ValueError": 1})
    driver.journal.log("closed", reason="stopped")
    families = driver.shown().families
    for described in DRIVER_METRICS:
        family = families[described.name.removesuffix("_total")]
        assert family.type == described.kind
        assert family.samples, described.name
        assert all(set(sample.labels) - {"le"} == set(described.labels) for sample in family.samples), described.name
    ours = {name for name in families if name.startswith("onceward_")}
    assert ours == {described.name.removesuffix("_total") for described in DRIVER_METRICS}
