"""Metrics of a coordinator. Gauges come from its published state when it is scraped, in the thread of the scrape.
Counters and histograms grow as facts pass. Labels are names of jobs and words of the protocol, never text of a peer."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from prometheus_client import Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from onceward.common.printable import log_fields, logger
from onceward.coordinator.service.certificates import expiry_of
from onceward.coordinator.service.observer import Unfinished, View
from onceward.protocol.answers import Note
from onceward.protocol.durable import Durable
from onceward.protocol.facts import (
    CheckpointAborted,
    CheckpointAmended,
    CheckpointCompleted,
    CheckpointSettled,
    CheckpointTriggered,
    CheckpointUnchanged,
    Fact,
    JobForgotten,
)
from onceward.protocol.state import JobState
from onceward.protocol.status import JobStatus
from onceward.protocol.values import SPARK_BATCH, JobName, ParticipantName, Role
from onceward.protocol.waits import unsettled_slots
from onceward.watch.metrics.places import MAX_JOBS, OTHERS, Places
from onceward.watch.metrics.registry import Described

__all__ = ["COORDINATOR_METRICS", "CoordinatorMetrics"]

_log = logger("onceward.metrics")

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_STORE_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

JOBS = Described("onceward_jobs", "gauge", ("status",), "Jobs by status.")
STATUS = Described(
    "onceward_job_status", "gauge", ("job_name", "status"), "1 for the present status of a job; other ones are absent."
)
LEADER = Described("onceward_leader", "gauge", (), "1 while this process makes the decisions, else 0.")
TERM = Described(
    "onceward_term", "gauge", (), "Number of its newest term as leader; 0 where only one coordinator can lead."
)
CERTIFICATE = Described(
    "onceward_certificate_expiry_timestamp_seconds",
    "gauge",
    ("file",),
    "When the first of the certificates in this option's file expires, in seconds since the epoch.",
)
COMMIT = Described("onceward_store_commit_seconds", "histogram", (), "Time of one write of decisions to the store.")
PHASE = Described(
    "onceward_checkpoint_phase_seconds", "histogram", ("phase",), "Time of a phase of a checkpoint, over all jobs."
)
REFUSALS = Described(
    "onceward_refusals_total",
    "counter",
    ("call", "reason"),
    "Calls that changed nothing, by their verdict or by their gRPC status.",
)
CHECKPOINTS = Described("onceward_checkpoints_total", "counter", ("job_name", "result"), "Checkpoints by result.")
ABORTS = Described(
    "onceward_checkpoint_aborts_total", "counter", ("job_name", "reason"), "Aborted checkpoints by reason."
)
PHASES = Described(
    "onceward_job_checkpoint_phase_seconds_total",
    "counter",
    ("job_name", "phase"),
    "Time that the checkpoints of a job have spent in a phase.",
)
READ = Described(
    "onceward_records_read_total",
    "counter",
    ("job_name",),
    "Records of completed checkpoints, by the source; a query has none.",
)
WRITTEN = Described(
    "onceward_records_written_total",
    "counter",
    ("job_name", "output"),
    "Records of completed checkpoints, by the sink.",
)
BYTES_WRITTEN = Described(
    "onceward_bytes_written_total", "counter", ("job_name", "output"), "Bytes of those records, by the sink."
)
REPLAYS = Described("onceward_replays_total", "counter", ("job_name",), "Amendments: lost slots were written again.")

GENERATION = Described("onceward_job_generation", "gauge", ("job_name",), "Generation of a job. Each start adds one.")
FAILURES = Described(
    "onceward_job_failures_in_row",
    "gauge",
    ("job_name",),
    "Failures in a row since a checkpoint was completed, also of generations before.",
)
COMPLETED_AT = Described(
    "onceward_job_last_completed_timestamp_seconds",
    "gauge",
    ("job_name",),
    "When the newest completed checkpoint was completed, in seconds since the epoch.",
)
COMPLETED_AGE = Described(
    "onceward_job_last_completed_age_seconds",
    "gauge",
    ("job_name",),
    "Time since then. It grows while there is no input.",
)
PROGRESS_AGE = Described(
    "onceward_job_progress_age_seconds",
    "gauge",
    ("job_name",),
    "Time since a checkpoint was completed or found nothing new, at most the time since the coordinator's start.",
)
PENDING_AGE = Described(
    "onceward_job_pending_age_seconds", "gauge", ("job_name",), "Age of the undecided checkpoint; 0 without one."
)
UNSETTLED = Described(
    "onceward_job_unsettled_committables",
    "gauge",
    ("job_name",),
    "Transactions of the newest completed checkpoint that are not proved committed.",
)
UNSETTLED_AGE = Described(
    "onceward_job_unsettled_age_seconds",
    "gauge",
    ("job_name",),
    "Time since that checkpoint was completed; 0 if settled.",
)
OLDEST_AGE = Described(
    "onceward_job_oldest_transaction_age_seconds",
    "gauge",
    ("job_name",),
    "Age of the oldest pre-committed transaction, as far as known; 0 without one.",
)
OLDEST_RATIO = Described(
    "onceward_job_oldest_transaction_timeout_ratio", "gauge", ("job_name",), "Share of its timeout that it has used."
)
LOSSES = Described(
    "onceward_job_unacknowledged_losses",
    "gauge",
    ("job_name",),
    "Slots whose records were given up and that no person has acknowledged.",
)

UNMEASURED = Described(
    "onceward_job_unmeasured", "gauge", ("job_name",), "1 for a job of which a metric is absent: the log says why."
)

_SUMMED = (FAILURES, UNSETTLED, LOSSES, UNMEASURED)
"""Of jobs that share a series, the sum is shown; of every other gauge, the worst value."""
_LEAST = (COMPLETED_AT,)

COORDINATOR_METRICS = (
    *(JOBS, STATUS, GENERATION, CHECKPOINTS, ABORTS, PHASE, PHASES, COMPLETED_AT, COMPLETED_AGE, PROGRESS_AGE),
    *(PENDING_AGE, FAILURES, UNSETTLED, UNSETTLED_AGE, OLDEST_AGE, OLDEST_RATIO, REPLAYS, LOSSES, UNMEASURED),
    *(READ, WRITTEN, BYTES_WRITTEN, COMMIT, REFUSALS, CERTIFICATE, LEADER, TERM),
)
"""All of them, as the reference page lists them."""


@dataclass
class _Totals:
    """What has passed for one label."""

    results: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    aborts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    phases: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    plain: dict[Described, float] = field(default_factory=lambda: defaultdict(float))
    written: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Records and bytes by output."""
    by_spark: bool = False
    """Whether Spark reads the input of a job, and does not say how much."""


class CoordinatorMetrics:
    """Collects for one process: it outlives each coordinator that it is attached to. See ``service/observer.py``."""

    def __init__(
        self,
        *,
        certificates: Mapping[str, Path] | None = None,
        most_jobs: int = MAX_JOBS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``certificates``: files in PEM, by the option that names them."""
        self._certificates = dict(certificates or {})
        self._wall = wall
        self._places = Places(most_jobs)
        self._view: View | None = None
        self._completed: dict[JobName, float] = {}
        """When each job's newest completed checkpoint was completed, in seconds since the epoch."""
        self._progress: dict[JobName, float] = {}
        """When a checkpoint of each job was completed or found nothing new, on the view's clock."""
        self._since = 0.0
        self._totals: dict[str, _Totals] = {}
        self._refusals: dict[tuple[str, ...], float] = defaultdict(float)
        self._commit = Histogram(COMMIT.name, COMMIT.text, registry=None, buckets=_STORE_SECONDS)
        self._phase = Histogram(PHASE.name, PHASE.text, PHASE.labels, registry=None, buckets=_SECONDS)
        self._phases = {name: self._phase.labels(name) for name in ("wait", "run", "decide", "settle")}
        self._term = 0
        self._unmeasured: set[JobName] = set()
        """Jobs that could not be measured whole in the last scrape: logged once."""

    # -- the observer

    def attached(
        self, view: View, completed_at: Mapping[JobName, datetime], term: int = 0, unfinished: Unfinished = ()
    ) -> None:
        self._term = term
        self._since = view.now()
        self._progress.clear()
        self._completed = {job: at.timestamp() for job, at in completed_at.items()}
        states = [state for state in view.states() if state.durable.status is not JobStatus.FORGOTTEN]
        known = {state.durable.job for state in states}
        self._places.keep_only(known)
        self._totals = {label: one for label, one in self._totals.items() if label in {*known, OTHERS}}
        ended = (JobStatus.FINISHED, JobStatus.CANCELLED)
        for state in sorted(states, key=lambda state: state.durable.status in ended):
            self._take_place(state.durable)
        self._view = view

    def detached(self) -> None:
        self._view = None

    def published(self, durable: Durable, facts: Sequence[Fact], at: datetime, stored_s: float = 0.0) -> None:
        job = durable.job
        self._take_place(durable)
        for fact in facts:
            match fact:
                case CheckpointTriggered():
                    self._spent(job, "wait", fact.waited_s)
                case CheckpointCompleted():
                    self._has_completed(job, fact, at)
                case CheckpointUnchanged():
                    self._of(job).results["unchanged"] += 1
                    self._moved(job)
                case CheckpointAborted():
                    totals = self._of(job)
                    totals.results["aborted"] += 1
                    totals.aborts[fact.reason.name.lower()] += 1
                case CheckpointSettled():
                    self._spent(job, "settle", fact.took_s)
                case CheckpointAmended():
                    self._of(job).plain[REPLAYS] += 1
                case JobForgotten():
                    self._forget(job)
                case _:
                    pass  # its effect is in the state

    def refused(self, note: Note) -> None:
        self._refusals[note.what, note.verdict.value] += 1

    def rejected(self, call: str, reason: str) -> None:
        self._refusals[call, reason] += 1

    def committed(self, seconds: float) -> None:
        self._commit.observe(seconds)

    def _has_completed(self, job: JobName, fact: CheckpointCompleted, at: datetime) -> None:
        totals = self._of(job)
        totals.results["completed"] += 1
        self._spent(job, "run", fact.ran_s)
        self._spent(job, "decide", fact.decided_s)
        for name, snapshot in fact.snapshots.items():
            if snapshot.positions is None:
                output = self._output(job, name)
                records, size = totals.written.get(output, (0.0, 0.0))
                totals.written[output] = records + snapshot.records, size + snapshot.bytes
            elif snapshot.positions.kind != SPARK_BATCH:
                totals.plain[READ] += snapshot.records  # their bytes are not known: the votes count what is written
        self._completed[job] = at.timestamp()
        self._moved(job)

    def _spent(self, job: JobName, phase: str, seconds: float) -> None:
        self._phases[phase].observe(seconds)
        self._of(job).phases[phase] += seconds

    def _moved(self, job: JobName) -> None:
        if self._view is not None:
            self._progress[job] = self._view.now()

    def _take_place(self, durable: Durable) -> None:
        """A new job takes a place, and its counters begin at 0."""
        totals = self._of(durable.job)
        totals.by_spark |= any(one.kind == SPARK_BATCH for one in durable.participants)
        for one in durable.participants:
            if one.role is Role.SINK:
                totals.written.setdefault(self._output(durable.job, one.name), (0.0, 0.0))

    def _output(self, job: JobName, name: ParticipantName) -> str:
        """The label of an output: those of jobs that share a series share one, too."""
        return name if self._places.label(job) == job else OTHERS

    def _of(self, job: JobName) -> _Totals:
        label = self._places.label(job)
        found = self._totals.get(label)
        if found is None:
            found = self._totals[label] = _Totals()
        return found

    def _forget(self, job: JobName) -> None:
        if self._places.label_now(job) == job:
            self._totals.pop(job, None)
        self._places.leave(job)
        self._completed.pop(job, None)
        self._progress.pop(job, None)

    # -- the collector

    def collect(self) -> Iterator[Metric]:
        """Every metric. Called in the thread of a scrape."""
        view = self._view
        yield _gauge(LEADER, {(): float(view is not None)})
        yield _gauge(TERM, {(): float(self._term)})
        yield _gauge(CERTIFICATE, {(option,): at for option, at in self._expiries()})
        yield from self._commit.collect()
        yield from self._phase.collect()
        yield _counter(REFUSALS, dict(self._refusals.items()))
        yield from self._counters()
        if view is not None:
            yield from self._gauges(view)

    def _expiries(self) -> Iterator[tuple[str, float]]:
        for option, file in self._certificates.items():
            if (at := expiry_of(file)) is not None:
                yield option, at.timestamp()

    def _counters(self) -> Iterator[Metric]:
        totals = list(self._totals.items())
        for metric, given in (
            (CHECKPOINTS, [(label, one.results) for label, one in totals]),
            (ABORTS, [(label, one.aborts) for label, one in totals]),
            (PHASES, [(label, one.phases) for label, one in totals]),
        ):
            # copied first: facts pass meanwhile
            yield _counter(metric, {(label, word): n for label, words in given for word, n in list(words.items())})
        counted = [(label, one.plain.get(READ)) for label, one in totals if READ in one.plain or not one.by_spark]
        yield _counter(READ, {(label,): n or 0.0 for label, n in counted})
        written = {(label, output): n for label, one in totals for output, n in list(one.written.items())}
        for place, metric in enumerate((WRITTEN, BYTES_WRITTEN)):
            yield _counter(metric, {labels: n[place] for labels, n in written.items()})
        yield _counter(REPLAYS, {(label,): one.plain.get(REPLAYS, 0.0) for label, one in totals})

    def _gauges(self, view: View) -> Iterable[Metric]:
        now, wall = view.now(), self._wall()
        jobs: Counter[str] = Counter({status.value: 0 for status in JobStatus})
        statuses: Counter[tuple[str, ...]] = Counter()
        found: dict[Described, dict[tuple[str, ...], float]] = {}
        for state in view.states():
            durable = state.durable
            jobs[durable.shown_status.value] += 1
            if durable.status is JobStatus.FORGOTTEN:
                continue
            label = self._places.label_now(durable.job)
            statuses[label, durable.shown_status.value] += 1
            for metric, value in self._measured(state, view, now, wall):
                series = found.setdefault(metric, {})
                series[label,] = _merged(metric, series.get((label,)), value)
        yield _gauge(JOBS, {(status,): float(n) for status, n in jobs.items()})
        yield _gauge(STATUS, {key: float(n) for key, n in statuses.items()})
        for metric in COORDINATOR_METRICS:
            if metric.kind == "gauge" and metric.labels == ("job_name",):
                yield _gauge(metric, found.get(metric, {}))

    def _measured(self, state: JobState, view: View, now: float, wall: float) -> Iterator[tuple[Described, float]]:
        """What can be measured of a job. What cannot must not hide the other jobs."""
        job, unmeasured = state.durable.job, 0.0
        try:
            yield from self._measure(state, view, now, wall)
        except Exception:  # noqa: BLE001 - whatever it is, the other jobs are measured
            unmeasured = 1.0
            if job not in self._unmeasured:
                self._unmeasured.add(job)
                _log.exception("%s", log_fields({"event": "job_unmeasured", "job": job}))
        else:
            self._unmeasured.discard(job)
        yield UNMEASURED, unmeasured

    def _measure(self, state: JobState, view: View, now: float, wall: float) -> Iterator[tuple[Described, float]]:
        durable = state.durable
        yield GENERATION, durable.generation
        yield FAILURES, durable.failures_in_row
        yield LOSSES, sum(len(loss.slots) for loss in durable.losses)
        yield PROGRESS_AGE, now - self._progress.get(durable.job, self._since)
        yield PENDING_AGE, 0.0 if state.pending is None else now - state.pending.started
        at = self._completed.get(durable.job)
        age = 0.0 if at is None else max(0.0, wall - at)
        if at is not None:
            yield COMPLETED_AT, at
            yield COMPLETED_AGE, age
        yield UNSETTLED, sum(unsettled_slots(state).values())
        yield UNSETTLED_AGE, 0.0 if durable.settled else age
        oldest = view.oldest(state)
        yield OLDEST_AGE, 0.0 if oldest is None else oldest.open_for.total_seconds()
        yield OLDEST_RATIO, 0.0 if oldest is None else oldest.open_for / oldest.timeout


def _merged(metric: Described, former: float | None, value: float) -> float:
    if former is None:
        return value
    if metric in _SUMMED:
        return former + value
    return min(former, value) if metric in _LEAST else max(former, value)


def _gauge(metric: Described, series: Mapping[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels, value in series.items():
        family.add_metric(labels, value)
    return family


def _counter(metric: Described, series: Mapping[tuple[str, ...], float]) -> Metric:
    family = CounterMetricFamily(metric.name, metric.text, labels=metric.labels)
    for labels, value in series.items():
        family.add_metric(labels, value)
    return family
