"""Metrics of a driver: its journal reports each transition of its job. Labels are the job's name and words of ours."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from onceward.common.links import Links
from onceward.coordinator.service.certificates import expiry_of
from onceward.watch.metrics.registry import Described

__all__ = ["DRIVER_METRICS", "DriverMetrics"]

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

GENERATION = Described("onceward_driver_generation", "gauge", ("job_name",), "Generation that the driver runs.")
GENERATIONS = Described(
    "onceward_driver_generations_ended_total", "counter", ("job_name", "end"), "Generations that were closed or failed."
)
PRE_COMMITTED = Described(
    "onceward_driver_checkpoints_pre_committed_total",
    "counter",
    ("job_name",),
    "Checkpoints with input that were written and proved.",
)
SETTLED = Described(
    "onceward_driver_checkpoints_settled_total",
    "counter",
    ("job_name",),
    "Checkpoints that were committed and recorded.",
)
ABORTED = Described(
    "onceward_driver_checkpoints_aborted_total", "counter", ("job_name",), "Checkpoints that were aborted."
)
READ = Described(
    "onceward_driver_records_read_total",
    "counter",
    ("job_name",),
    "Offsets of pre-committed checkpoints; a query has none.",
)
WRITTEN = Described(
    "onceward_driver_records_written_total", "counter", ("job_name", "output"), "Records of pre-committed checkpoints."
)
BYTES = Described(
    "onceward_driver_bytes_written_total", "counter", ("job_name", "output"), "Bytes of those records, by the sink."
)
LETTERS = Described(
    "onceward_driver_dead_letters_total",
    "counter",
    ("job_name", "class"),
    "Records set aside as dead letters, by the class of the reason; also those of a checkpoint that is aborted later.",
)
LAG = Described(
    "onceward_driver_source_lag_offsets",
    "gauge",
    ("job_name",),
    "Offsets that the newest checkpoint with input left unread; a query has none.",
)
LOST = Described(
    "onceward_driver_transactions_lost_total",
    "counter",
    ("job_name",),
    "Transactions of completed checkpoints that were lost.",
)
REPLAYED = Described(
    "onceward_driver_slots_replayed_total", "counter", ("job_name",), "Lost slots that were written again."
)
SECONDS = Described(
    "onceward_driver_checkpoint_seconds",
    "histogram",
    ("job_name",),
    "Time from the Spark job's start to the proof of its votes.",
)
STEPS = Described(
    "onceward_driver_step_seconds", "histogram", ("job_name", "step"), "Time of each step of a checkpoint (see Events)."
)
OUTPUT_STEPS = Described(
    "onceward_driver_output_step_seconds",
    "histogram",
    ("job_name", "output", "step"),
    "Time that the pre-commit and the commit of one output took.",
)
COMMITTING = Described(
    "onceward_driver_output_committing_seconds",
    "gauge",
    ("job_name", "output"),
    "For how long the commit of a completed checkpoint has lasted in one output; 0 = none is under way. Later "
    "checkpoints wait for the slowest output.",
)
SETTLED_AT = Described(
    "onceward_driver_last_settled_timestamp_seconds",
    "gauge",
    ("job_name",),
    "When a checkpoint was last settled, in seconds since the epoch; 0 before the first.",
)
CERTIFICATE = Described(
    "onceward_driver_certificate_expiry_timestamp_seconds",
    "gauge",
    ("job_name",),
    "When the first of the certificates that the driver shows to its coordinator expires, in seconds since the epoch; "
    "absent without one.",
)
HELD = Described(
    "onceward_driver_held_back_seconds",
    "gauge",
    ("job_name",),
    "For how long something that answers, such as an open transaction in the input, has held the driver back; 0 = "
    "nothing does.",
)
HANGING = Described(
    "onceward_driver_hanging_transactions",
    "gauge",
    ("job_name",),
    "Transactions of the job that the brokers have ended without all markers and that the driver could not finish yet: "
    "readers of committed records wait behind them.",
)
FINISHED = Described(
    "onceward_driver_hanging_transactions_finished_total",
    "counter",
    ("job_name",),
    "Transactions of which the driver has written the markers that the brokers had skipped.",
)
LINKS = Described(
    "onceward_driver_broken_links", "gauge", ("job_name",), "Brokers, clusters and coordinators that do not answer now."
)

DRIVER_METRICS = (
    *(GENERATION, GENERATIONS, PRE_COMMITTED, SETTLED, ABORTED, READ, WRITTEN, BYTES, LETTERS, LAG, LOST, REPLAYED),
    *(SECONDS, STEPS, OUTPUT_STEPS, COMMITTING, SETTLED_AT, LINKS, HELD, HANGING, FINISHED, CERTIFICATE),
)
"""All of them, as the reference page lists them."""


class DriverMetrics:
    """Counts one job's events. Thread-safe: the driver's main thread and its settler report."""

    def __init__(
        self,
        job: str,
        registry: CollectorRegistry,
        links: Links,
        *,
        certificate: Path | None = None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``links``: what does not work now; read in the thread of a scrape. ``certificate``: the file of the one
        that the driver shows to its coordinator."""
        self._wall = wall
        self._monotonic = monotonic

        def counter(metric: Described) -> Counter:
            made = Counter(metric.name, metric.text, metric.labels, registry=registry)
            return made.labels(job) if metric.labels == ("job_name",) else made

        def gauge(metric: Described) -> Gauge:
            return Gauge(metric.name, metric.text, metric.labels, registry=registry).labels(job)

        self._job = job
        self._generation = gauge(GENERATION)
        self._generations = counter(GENERATIONS)
        self._pre_committed = counter(PRE_COMMITTED)
        self._settled = counter(SETTLED)
        self._aborted = counter(ABORTED)
        self._read = counter(READ)
        self._written = counter(WRITTEN)
        self._bytes = counter(BYTES)
        self._letters = counter(LETTERS)
        self._lag = gauge(LAG)
        self._lost = counter(LOST)
        self._replayed = counter(REPLAYED)
        self._seconds = Histogram(
            SECONDS.name, SECONDS.text, SECONDS.labels, registry=registry, buckets=_SECONDS
        ).labels(job)
        self._steps = Histogram(STEPS.name, STEPS.text, STEPS.labels, registry=registry, buckets=_SECONDS)
        self._output_steps = Histogram(
            OUTPUT_STEPS.name, OUTPUT_STEPS.text, OUTPUT_STEPS.labels, registry=registry, buckets=_SECONDS
        )
        self._committing: dict[str, float | None] = {}
        """Since when each output commits; None: it does not."""
        self._settled_at = gauge(SETTLED_AT)
        gauge(LINKS).set_function(lambda: sum(not one.held for one in links.troubles()))
        gauge(HELD).set_function(lambda: max((one.for_s for one in links.troubles() if one.held), default=0.0))
        gauge(HANGING).set_function(lambda: len(links.hanging))
        registry.register(_Committing(job, self._committing, monotonic))
        registry.register(_Finished(job, links))
        registry.register(_Certificate(job, certificate))

    def event(self, event: str, facts: Mapping[str, Any]) -> None:
        """Count one event of the journal (docs/reference/events.md)."""
        self._generation.set(facts["generation"])
        for step, seconds in facts.get("steps", {}).items():
            self._steps.labels(self._job, step).observe(seconds)
        match event:
            case "pre-committed":
                self._pre_committed.inc()
                for output, wrote in facts["outputs"].items():
                    self._written.labels(self._job, output).inc(wrote["written"])
                    self._bytes.labels(self._job, output).inc(wrote["bytes"])
                    self._committing.setdefault(output, None)
                self._seconds.observe(facts["seconds"])
                if "batch" not in facts:  # Spark reads a query's input
                    self._read.inc(facts["read"])
                    self._lag.set(facts["lag"])
            case "dead letters":
                for kind, letters in facts["reasons"].items():
                    self._letters.labels(self._job, kind).inc(letters)
            case "settled":
                self._settled.inc()
                self._settled_at.set(self._wall())
            case "aborted":
                self._aborted.inc()
            case "lost":
                self._lost.inc(facts["transactions"])
            case "replayed":
                self._replayed.inc(facts["slots"])
            case "output begins" if facts["step"] == "commit":
                self._committing[facts["output"]] = self._monotonic()
            case "output ends":
                self._output_steps.labels(self._job, facts["output"], facts["step"]).observe(facts["seconds"])
                if facts["step"] == "commit":
                    self._committing[facts["output"]] = None
            case "closed" | "failed":
                self._generations.labels(self._job, event).inc()
                self._committing.update(dict.fromkeys(self._committing))  # the next generation commits again
            case _:
                pass


class _Committing:
    """Grows while a commit lasts, so it is computed at each scrape."""

    def __init__(self, job: str, since: Mapping[str, float | None], monotonic: Callable[[], float]) -> None:
        self._job, self._since, self._monotonic = job, since, monotonic

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(COMMITTING.name, COMMITTING.text, labels=COMMITTING.labels)
        for output, since in dict(self._since).items():
            family.add_metric((self._job, output), 0.0 if since is None else self._monotonic() - since)
        yield family


class _Finished:
    """Counted by the links, which everything that ends transactions reports to."""

    def __init__(self, job: str, links: Links) -> None:
        self._job, self._links = job, links

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(FINISHED.name, FINISHED.text, labels=FINISHED.labels)
        family.add_metric((self._job,), self._links.finished)
        yield family


class _Certificate:
    """Reads the file at each scrape: it may have been replaced."""

    def __init__(self, job: str, file: Path | None) -> None:
        self._job, self._file = job, file

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(CERTIFICATE.name, CERTIFICATE.text, labels=CERTIFICATE.labels)
        at = None if self._file is None else expiry_of(self._file)
        if at is not None:
            family.add_metric((self._job,), at.timestamp())
        yield family
