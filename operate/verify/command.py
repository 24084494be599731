"""``onceward verify``: its command line and its output."""

import importlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from onceward.client.operators import OperatorClient
from onceward.common.errors import ConfigurationError, PreflightError
from onceward.connections.cluster import KafkaCluster
from onceward.connections.clusters_file import load_clusters
from onceward.connectors.letters import DEAD_LETTERS
from onceward.coordinator.service.kinds import installed_kinds, part
from onceward.operate.connecting import CoordinatorLocation, job_name, operators
from onceward.operate.dead_letters import runs_of, topic_of
from onceward.operate.options import systems_of
from onceward.operate.prompts import print_result, say
from onceward.operate.tables import print_json
from onceward.operate.verify.asking import origin_of, reports_of_coordinator
from onceward.operate.verify.history import Lane
from onceward.operate.verify.letters import LettersAtRest
from onceward.operate.verify.quiescence import Job
from onceward.operate.verify.table_output import ExpectedRows, RowForm, Table, rows_of_json
from onceward.operate.verify.topic_output import Expected, Topics
from onceward.operate.verify.verdict import Grade
from onceward.operate.verify.verifier import Asked, Verified, verify
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.status import JobStatus
from onceward.protocol.values import JobName

__all__ = ["EXIT_CODES", "Wanted", "run_verify"]

EXIT_CODES: Mapping[Grade, int] = {Grade.PASS: 0, Grade.FAIL: 1, Grade.UNKNOWN: 10}
"""The code for UNKNOWN is not used by a job's process or by any other command."""

_RUNNING = (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FINISHING)
_REPORT_EVERY_S = 1.0
_KAFKA = NamedSystem(kind="kafka", configuration=None)
"""What a name without a table in the systems file is taken for."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The command line."""

    job: str
    inputs: Sequence[str]
    """``[CLUSTER:]TOPIC``."""
    outputs: Sequence[str]
    servers: str | None
    systems: Path | None
    expected_by: str | None
    by: Sequence[str] = ()
    """Columns of a table; so are ``key`` and ``delete``."""
    key: Sequence[str] = ()
    delete: str = ""
    from_earliest: bool
    order: bool
    at_least_once: bool
    patience_s: float
    as_json: bool


def run_verify(wanted: Wanted, place: CoordinatorLocation) -> int:
    """Compare, print, and return the exit code. Raises OncewardError; then nothing was judged."""
    name = job_name(wanted.job)
    source, inputs = _input(wanted)
    with closing(_output(wanted)) as output:
        asked = Asked(
            source=source,
            inputs=inputs,
            output=output,
            from_earliest=wanted.from_earliest,
            order=wanted.order,
            at_least_once=wanted.at_least_once,
            patience_s=wanted.patience_s,
        )
        verified = _verified(wanted, place, name, asked)
    if wanted.as_json:
        print_json(_as_json(wanted.job, verified))
    else:
        print_result(_as_text(wanted, verified))
    return EXIT_CODES[verified.verdict.grade]


def _verified(wanted: Wanted, place: CoordinatorLocation, name: JobName, asked: Asked) -> Verified:
    with operators(place) as (client, _):
        asked = replace(asked, letters=_letters(client, name, wanted))
        positions: dict[int, dict[Lane, int] | None] = {}
        job = Job(
            name=name,
            reports=lambda: reports_of_coordinator(client, name, cache=positions),
            running=lambda: client.job(name).status in _RUNNING,
            origin=lambda checkpoint: origin_of(client.checkpoint(name, checkpoint).snapshots),
        )
        try:
            return verify(job, asked, _Told(quiet=wanted.as_json))
        except KafkaException as error:
            raise PreflightError(
                f"A cluster did not answer: {error.args[0]}. Nothing was judged. "
                "Check the brokers and the topics' names."
            ) from error


def _letters(client: OperatorClient, job: JobName, wanted: Wanted) -> LettersAtRest | None:
    """Return the job's dead letters. Raises OncewardError if they cannot be read."""
    if all(one.name != DEAD_LETTERS for one in client.describe(job).participants):
        return None
    systems = wanted.systems if wanted.servers is None else None
    topic = topic_of(client, job, wanted.servers, systems, None)
    return LettersAtRest(topic.cluster, topic.name, job, runs_of(client, job))


def _input(wanted: Wanted) -> tuple[KafkaCluster, list[str]]:
    if wanted.servers is None and wanted.systems is None:
        raise _usage("name the brokers, either with --servers HOST:PORT or with --systems FILE")
    return _topics("--input", wanted.inputs, wanted)


def _output(wanted: Wanted) -> Topics | Table:
    known = {} if wanted.systems is None else systems_of(wanted.systems, "judged")
    tables = [one for one in wanted.outputs if known.get(one.partition(":")[0], _KAFKA).kind != "kafka"]
    if not tables:
        if wanted.servers is not None and wanted.systems is not None:
            raise _usage("name the brokers, either with --servers HOST:PORT or with --systems FILE")
        if wanted.by or wanted.key or wanted.delete:
            raise _usage("--by, --key and --delete are for tables: --output SYSTEM:TABLE, with --systems FILE")
        cluster, topics = _topics("--output", wanted.outputs, wanted)
        return Topics(cluster, topics, _expected(wanted.expected_by, topics))
    if len(wanted.outputs) > 1:
        raise _usage(f"a table is verified alone; call the command once for each of {', '.join(wanted.outputs)}")
    if wanted.delete and not wanted.key:
        raise _usage("--delete needs --key: a row is deleted by its key")
    name, _, table = tables[0].partition(":")
    system = known[name]
    kind = installed_kinds("judged").get(system.kind)
    if kind is None or not kind.reader:
        raise _usage(f"system {name} is of kind {system.kind}, and no installed package can read the tables of one")
    open_table = part(system.kind, kind.reader, "judged")
    form = RowForm(by=wanted.by, key=wanted.key, delete=wanted.delete)
    return Table(lambda: open_table(system.configuration, table), form, _expected_rows(wanted.expected_by))


def _topics(option: str, named: Sequence[str], wanted: Wanted) -> tuple[KafkaCluster, list[str]]:
    """Return the one cluster, and its topics."""
    if wanted.servers is not None:
        if any(":" in one for one in named):
            raise _usage(
                f"{option} CLUSTER:TOPIC names a cluster of --systems FILE; with --servers give the topic alone"
            )
        return KafkaCluster(wanted.servers), list(named)
    assert wanted.systems is not None
    known = load_clusters(wanted.systems)
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
    return _checked(text, _is_record, "(topic, key, value) with bytes or None")


def _expected_rows(text: str | None) -> ExpectedRows:
    if text is None:
        return rows_of_json
    return _checked(text, lambda one: isinstance(one, Mapping), "rows as dictionaries, column to value")


def _checked(text: str, right: Callable[[object], bool], form: str) -> Callable[..., list[Any]]:
    """Load the user's function; report clearly when its result has the wrong form."""
    module, _, name = text.partition(":")
    sys.path.insert(0, "")  # like python -m: the user's module is in the current directory
    try:
        function: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise _usage(f"--expected-by {text} cannot be loaded: {error}") from error
    if not callable(function):
        raise _usage(f"--expected-by {text} is no function")

    def expected(topic: str, key: bytes | None, value: bytes | None) -> list[Any]:
        records = list(function(topic, key, value))
        for one in records:
            if not right(one):
                raise _usage(f"--expected-by {text} must give {form}; it gave {one!r}")
        return records

    return expected


def _is_record(one: object) -> bool:
    return isinstance(one, tuple) and len(one) == 3 and isinstance(one[0], str) and all(map(_bytes, one[1:]))


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
        say(f"{what}: {done:,} of {total:,} offsets" if total else f"{what}: {done:,} rows")


def _as_json(job: str, verified: Verified) -> Mapping[str, Any]:
    fates = verified.fates
    return {
        "job": job,
        "checkpoint": verified.checkpoint,
        **verified.verdict.to_json(),
        "records": {"expected": verified.expected, "visible": verified.visible},
        "input": None if fates is None else {"read": fates.read, **asdict(fates)},
        "keys": {"differing": verified.differing, "judged": verified.judged},
    }


def _as_text(wanted: Wanted, verified: Verified) -> str:
    lines = [
        f"{'at least once' if wanted.at_least_once else 'exactly once'}: {verified.verdict.grade.value}",
        f"job {wanted.job} up to checkpoint {verified.checkpoint}: {verified.expected:,} records expected, "
        f"{verified.visible:,} visible",
    ]
    if (fates := verified.fates) is not None:
        letters = f", {fates.letters:,} dead letters" if fates.letters else ""
        lines.append(f"{fates.read:,} records read: {fates.written:,} written, {fates.filtered:,} filtered{letters}")
    for result in verified.verdict.results.values():
        lines.append(f"  {result.grade.value:<8}{result.property.value}")
        lines += [f"          {words}" for words in result.evidence]
    if verified.judged < verified.differing:
        lines.append(f"{verified.differing:,} keys differ; the first {verified.judged:,} of them are judged above")
    return "\n".join(lines)
