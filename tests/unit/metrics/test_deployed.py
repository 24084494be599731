"""Alerts and dashboard in ``deploy``: each name is exported, each alert fires when it should and not otherwise."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from onceward.protocol.status import JobStatus
from onceward.watch.metrics.coordinator import COORDINATOR_METRICS
from onceward.watch.metrics.driver import DRIVER_METRICS
from tests.support.promql import History, Labels, evaluate, selectors

ROOT = Path(__file__).resolve().parents[3]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "onceward.json"
NOW = 1_800_000_000.0
STEP_S = 15.0


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def exported() -> dict[str, set[str]]:
    """Name of each series -> its labels; Prometheus adds ``instance`` and ``job``."""
    found: dict[str, set[str]] = {"process_resident_memory_bytes": {"instance", "job"}}
    for metric in (*COORDINATOR_METRICS, *DRIVER_METRICS):
        labels = {*metric.labels, "instance", "job"}
        if metric.kind == "histogram":
            found |= {f"{metric.name}_{end}": labels for end in ("sum", "count")}
            found[f"{metric.name}_bucket"] = labels | {"le"}
        else:
            found[metric.name] = labels
    return found


def queries() -> Iterator[tuple[str, str]]:
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            # Grafana replaces its variables before Prometheus sees the query
            expression = target["expr"].replace("$__rate_interval", "1m").replace("$job_name", ".*")
            yield panel["title"], expression


def labels_of_variables() -> Iterator[tuple[str, str]]:
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            yield found[1], found[2]


@pytest.mark.parametrize(
    ("where", "expression"),
    [*((name, rule["expr"]) for name, rule in rules().items()), *queries()],
    ids=lambda text: text[:30],
)
def test_every_query_is_promql_on_series_that_are_exported(where: str, expression: str) -> None:
    known = exported()
    chosen = list(selectors(promql.parse(expression)))
    assert chosen, where
    for selector in chosen:
        assert selector.name in known, where
        assert {matcher.name for matcher in selector.matchers.matchers} <= known[selector.name], where


def test_queries_ask_for_statuses_and_results_that_exist() -> None:
    words = {"status": {status.value for status in JobStatus}, "result": {"completed", "unchanged", "aborted"}}
    for expression in [*(rule["expr"] for rule in rules().values()), *(expression for _, expression in queries())]:
        for selector in selectors(promql.parse(expression)):
            for matcher in selector.matchers.matchers:
                assert set(matcher.value.split("|")) <= words.get(
                    matcher.name, {matcher.value, *matcher.value.split("|")}
                )


def test_legends_variables_and_summaries_name_labels_that_are_exported() -> None:
    known = exported()
    for name, label in labels_of_variables():
        assert label in known[name]
    everything = set().union(*known.values())
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= everything, panel["title"]
    for name, rule in rules().items():
        assert rule["labels"]["severity"] in ("critical", "warning")
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        # only what all series of the expression have: absent() gives no labels
        given = [known[selector.name] for selector in selectors(promql.parse(rule["expr"]))]
        assert all(used <= labels for labels in given), name


def test_every_panel_of_the_dashboard_has_its_own_place_and_number() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (column, row)
        for place in (panel["gridPos"] for panel in panels)
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(column for column, _ in taken) < 24


@dataclass(frozen=True)
class Given:
    """A series in the last half hour: from the first value to the last in equal steps."""

    name: str
    labels: str
    first: float
    last: float


def history(*series: Given) -> History:
    steps = int(1800 / STEP_S)
    return {
        labels(one.name, one.labels): [
            (NOW - 1800 + step * STEP_S, one.first + (one.last - one.first) * step / steps) for step in range(steps + 1)
        ]
        for one in series
    }


def labels(name: str, text: str) -> Labels:
    pairs = [pair.split("=") for pair in text.split(",") if pair]
    return frozenset({("__name__", name), ("instance", "here"), *((key, value) for key, value in pairs)})


def flat(name: str, text: str, value: float) -> Given:
    return Given(name, text, value, value)


JOB = "job_name=a"
RUNNING = flat("onceward_job_status", "job_name=a,status=running", 1)
FINISHED = flat("onceward_job_status", "job_name=a,status=finished", 1)
CASES: dict[str, tuple[list[list[Given]], list[list[Given]]]] = {
    "OncewardJobHalted": ([[flat("onceward_job_status", "job_name=a,status=halted", 1)]], [[RUNNING], []]),
    "OncewardJobWithoutDriver": ([[flat("onceward_job_status", "job_name=a,status=suspended", 1)]], [[RUNNING]]),
    "OncewardNoCheckpoint": (
        [
            [RUNNING, flat("onceward_job_progress_age_seconds", JOB, 301)],
            [
                flat("onceward_job_status", "job_name=a,status=restarting", 1),
                flat("onceward_job_progress_age_seconds", JOB, 9e9),
            ],
        ],
        [
            [RUNNING, flat("onceward_job_progress_age_seconds", JOB, 299)],
            [FINISHED, flat("onceward_job_progress_age_seconds", JOB, 9e9)],
            [RUNNING, flat("onceward_job_progress_age_seconds", "job_name=b", 9e9)],
        ],
    ),
    "OncewardFailuresInRow": (
        [[flat("onceward_job_failures_in_row", JOB, 3)]],
        [[flat("onceward_job_failures_in_row", JOB, 2)]],
    ),
    "OncewardKeepsRestarting": (
        [[Given("onceward_job_generation", JOB, 1, 20)]],
        [[flat("onceward_job_generation", JOB, 20)], [Given("onceward_job_generation", "job_name=_others", 1, 20)]],
    ),
    "OncewardTransactionOld": (
        [[flat("onceward_job_oldest_transaction_timeout_ratio", JOB, 0.81)]],
        [[flat("onceward_job_oldest_transaction_timeout_ratio", JOB, 0.79)]],
    ),
    "OncewardUnsettled": (
        [[flat("onceward_job_unsettled_age_seconds", JOB, 121)]],
        [[flat("onceward_job_unsettled_age_seconds", JOB, 0)]],
    ),
    "OncewardLossesNotAcknowledged": (
        [[flat("onceward_job_unacknowledged_losses", JOB, 1)]],
        [[flat("onceward_job_unacknowledged_losses", JOB, 0)]],
    ),
    "OncewardDeadLetters": (
        [[Given("onceward_records_written_total", "job_name=a,output=dead-letters", 0, 30)]],
        [
            [flat("onceward_records_written_total", "job_name=a,output=dead-letters", 30)],
            [Given("onceward_records_written_total", "job_name=a,output=sink", 0, 30)],
        ],
    ),
    "OncewardStoreSlow": (
        [
            [
                Given("onceward_store_commit_seconds_sum", "", 0, 360),
                Given("onceward_store_commit_seconds_count", "", 0, 1800),
            ]
        ],
        [
            [
                Given("onceward_store_commit_seconds_sum", "", 0, 18),
                Given("onceward_store_commit_seconds_count", "", 0, 1800),
            ]
        ],
    ),
    "OncewardNoLeader": ([[flat("onceward_leader", "", 0)], []], [[flat("onceward_leader", "", 1)]]),
    "OncewardCertificateExpires": (
        [[flat("onceward_certificate_expiry_timestamp_seconds", "file=tls-cert", NOW + 6 * 86400)]],
        [[flat("onceward_certificate_expiry_timestamp_seconds", "file=tls-cert", NOW + 8 * 86400)]],
    ),
    "OncewardDriverCertificateExpires": (
        [[flat("onceward_driver_certificate_expiry_timestamp_seconds", JOB, NOW + 6 * 86400)]],
        [[flat("onceward_driver_certificate_expiry_timestamp_seconds", JOB, NOW + 8 * 86400)]],
    ),
    "OncewardLagGrows": (
        [[Given("onceward_driver_source_lag_offsets", JOB, 0, 20_000)]],
        [
            [Given("onceward_driver_source_lag_offsets", JOB, 30_000, 20_000)],
            [Given("onceward_driver_source_lag_offsets", JOB, 0, 5_000)],
        ],
    ),
    "OncewardTransactionHangs": (
        [[flat("onceward_driver_hanging_transactions", JOB, 1)]],
        [[flat("onceward_driver_hanging_transactions", JOB, 0)], []],
    ),
    "OncewardHeldBack": (
        [[flat("onceward_driver_held_back_seconds", JOB, 901)]],
        [[flat("onceward_driver_held_back_seconds", JOB, 899)]],
    ),
    "OncewardOutputHoldsBack": (
        [[flat("onceward_driver_output_committing_seconds", f"{JOB},output=lake", 121)]],
        [[flat("onceward_driver_output_committing_seconds", f"{JOB},output=lake", 0)]],
    ),
    "OncewardLinkBroken": (
        [[flat("onceward_driver_broken_links", JOB, 1)]],
        [[flat("onceward_driver_broken_links", JOB, 0)]],
    ),
}


def test_every_alert_has_cases() -> None:
    assert CASES.keys() == rules().keys()


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_when_it_should_and_not_otherwise(alert: str) -> None:
    expression = promql.parse(rules()[alert]["expr"])
    fires, silent = CASES[alert]
    for given in fires:
        assert evaluate(expression, history(*given), NOW), given
    for given in silent:
        assert evaluate(expression, history(*given), NOW) == {}, given
