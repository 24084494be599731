"""``onceward verify``: its command line and its output."""

import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from onceward.common.errors import ConfigurationError, PreflightError
from onceward.connections.cluster import KafkaCluster
from onceward.connections.clusters_file import load_clusters
from onceward.operate.connecting import CoordinatorLocation, job_name, operators
from onceward.operate.prompts import print_result, say
from onceward.operate.tables import print_json
from onceward.operate.verify.asking import origin_of, reports_of_coordinator
from onceward.operate.verify.history import Lane
from onceward.operate.verify.quiescence import Job
from onceward.operate.verify.topic_verifier import Asked, Expected, Verified, verify
from onceward.operate.verify.verdict import Grade
from onceward.protocol.status import JobStatus

__all__ = ["EXIT_CODES", "Wanted", "run_verify"]

EXIT_CODES: Mapping[Grade, int] = {Grade.PASS: 0, Grade.FAIL: 1, Grade.UNKNOWN: 10}
"""The code for UNKNOWN is not used by a job's process or by any other command."""

_RUNNING = (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FINISHING)
_REPORT_EVERY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The command line."""

    job: str
    inputs: Sequence[str]
    """``[CLUSTER:]TOPIC``."""
    outputs: Sequence[str]
    servers: str | None
    clusters: Path | None
    expected_by: str | None
    from_earliest: bool
    order: bool
    at_least_once: bool
    patience_s: float
    as_json: bool


def run_verify(wanted: Wanted, place: CoordinatorLocation) -> int:
    """Compare, print, and return the exit code. Raises OncewardError; then nothing was judged."""
    name = job_name(wanted.job)
    source, inputs = _topics("--input", wanted.inputs, wanted)
    sink, outputs = _topics("--output", wanted.outputs, wanted)
    asked = Asked(
        source=source,
        inputs=inputs,
        sink=sink,
        outputs=outputs,
        expected=_expected(wanted.expected_by, outputs),
        from_earliest=wanted.from_earliest,
        order=wanted.order,
        at_least_once=wanted.at_least_once,
        patience_s=wanted.patience_s,
    )
    with operators(place) as (client, _):
        positions: dict[int, dict[Lane, int] | None] = {}
        job = Job(
            name=name,
            reports=lambda: reports_of_coordinator(client, name, cache=positions),
            running=lambda: client.job(name).status in _RUNNING,
            origin=lambda checkpoint: origin_of(client.checkpoint(name, checkpoint).snapshots),
        )
        try:
            verified = verify(job, asked, _Told(quiet=wanted.as_json))
        except KafkaException as error:
            raise PreflightError(
                f"A cluster did not answer: {error.args[0]}. Nothing was judged. "
                "Check the brokers and the topics' names."
            ) from error
    if wanted.as_json:
        print_json(_as_json(wanted.job, verified))
    else:
        print_result(_as_text(wanted, verified))
    return EXIT_CODES[verified.verdict.grade]


def _topics(option: str, named: Sequence[str], wanted: Wanted) -> tuple[KafkaCluster, list[str]]:
    """Return the one cluster, and its topics."""
    if (wanted.servers is None) == (wanted.clusters is None):
        raise _usage("name the brokers, either with --servers HOST:PORT or with --clusters FILE")
    if wanted.servers is not None:
        if any(":" in one for one in named):
            raise _usage(
                f"{option} CLUSTER:TOPIC names a cluster of --clusters FILE; with --servers give the topic alone"
            )
        return KafkaCluster(wanted.servers), list(named)
    assert wanted.clusters is not None
    known = load_clusters(wanted.clusters)
    pairs = [one.rpartition(":") for one in named]
    clusters = {cluster for cluster, _, _ in pairs}
    if len(clusters) != 1 or not clusters <= known.keys():
        said = ", ".join(named)
        raise _usage(
            f"{option} must name topics of one cluster, as CLUSTER:TOPIC with one of {', '.join(known)}; not {said}"
        )
    return known[clusters.pop()], [topic for _, _, topic in pairs]


def _expected(text: str | None, outputs: Sequence[str]) -> Expected:
    if text is None:
        if len(outputs) != 1:
            raise _usage("a copy goes to one topic; for several, give a mapping with --expected-by MODULE:FUNCTION")
        return lambda _topic, key, value: [(outputs[0], key, value)]
    module, _, function = text.partition(":")
    sys.path.insert(0, "")  # like python -m: the user's module is in the current directory
    try:
        found: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise _usage(f"--expected-by {text} cannot be loaded: {error}") from error
    if not callable(found):
        raise _usage(f"--expected-by {text} is no function")
    return _checked(found, text)


def _checked(function: Callable[..., Any], text: str) -> Expected:
    """Wrap the user's function; report clearly when its result has the wrong form."""

    def expected(topic: str, key: bytes | None, value: bytes | None) -> list[tuple[str, bytes | None, bytes | None]]:
        records = list(function(topic, key, value))
        for one in records:
            if not (isinstance(one, tuple) and len(one) == 3 and isinstance(one[0], str) and all(map(_bytes, one[1:]))):
                raise _usage(f"--expected-by {text} must give (topic, key, value) with bytes or None; it gave {one!r}")
        return records

    return expected


def _bytes(part: object) -> bool:
    return part is None or isinstance(part, bytes)


def _usage(what: str) -> ConfigurationError:
    return ConfigurationError(f"{what[0].upper()}{what[1:]}. Nothing was judged.")


class _Told:
    """Progress on standard error, about once a second."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._next = time.monotonic() + _REPORT_EVERY_S

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._quiet or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _REPORT_EVERY_S
        say(f"{what}: {done:,} of {total:,} offsets")


def _as_json(job: str, verified: Verified) -> Mapping[str, Any]:
    return {
        "job": job,
        "checkpoint": verified.checkpoint,
        **verified.verdict.to_json(),
        "records": {"expected": verified.expected, "visible": verified.visible},
        "keys": {"differing": verified.differing, "judged": verified.judged},
    }


def _as_text(wanted: Wanted, verified: Verified) -> str:
    lines = [
        f"{'at least once' if wanted.at_least_once else 'exactly once'}: {verified.verdict.grade.value}",
        f"job {wanted.job} up to checkpoint {verified.checkpoint}: {verified.expected:,} records expected, "
        f"{verified.visible:,} visible",
    ]
    for result in verified.verdict.results.values():
        lines.append(f"  {result.grade.value:<8}{result.property.value}")
        lines += [f"          {words}" for words in result.evidence]
    if verified.judged < verified.differing:
        lines.append(f"{verified.differing:,} keys differ; the first {verified.judged:,} of them are judged above")
    return "\n".join(lines)
