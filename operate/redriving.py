"""``onceward redrive``: bring a job's dead letters back into its input, by a job of their own."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from onceward.client.operators import OperatorClient
from onceward.common.errors import ConfigurationError, RefusedError
from onceward.connections.cluster import KafkaCluster
from onceward.connectors.letters import Run, Wanted, back_job
from onceward.coordinator.service.kinds import installed_kinds, part
from onceward.coordinator.service.state_dir import StateDirectory, state_directory
from onceward.operate.connecting import CoordinatorLocation, job_name, operators
from onceward.operate.dead_letters import (
    LetterTopic,
    clusters_of,
    letters_of,
    reading_letters,
    runs_of,
    topic_of,
)
from onceward.operate.options import not_installed
from onceward.operate.prompts import confirm, print_result, say
from onceward.operate.verify.asking import origin_of
from onceward.operate.verify.cluster import ClusterView
from onceward.protocol.events import CloseReason
from onceward.protocol.values import JobName

__all__ = ["Asked", "redrive"]

_NOTHING = "Nothing was brought back"
_RESTARTS = 10
"""In a row: a person waits for the command."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The command line."""

    job: str
    servers: str | None
    systems: Path | None
    topic: str | None
    kind: str | None
    output: str | None
    since: str | None
    attempts: int
    dry_run: bool
    drop: bool = False
    reason: str = ""
    yes: bool = False


@dataclass(frozen=True, kw_only=True)
class _Input:
    """Where letters go."""

    cluster: KafkaCluster
    partitions: Mapping[str, int]
    """By topic."""


def redrive(asked: Asked, place: CoordinatorLocation) -> None:
    """Bring back what is wanted, and say how much that was. Raises OncewardError."""
    job = job_name(asked.job)
    since = _since(asked.since)
    if asked.drop != bool(asked.reason):
        raise ConfigurationError(
            f"--drop and --reason go together: your name, and why nothing has to go back. {_NOTHING}."
        )
    with operators(place) as (client, momentary):
        into = _input(client, job, asked)
        letters = topic_of(client, job, asked.servers, asked.systems, asked.topic)
        runs = runs_of(client, job)
    wanted = Wanted(
        job=job,
        topics=tuple(sorted(into.partitions)),
        attempts=asked.attempts,
        kind=asked.kind,
        output=asked.output,
        since=since,
        drop=asked.reason,
    )
    if asked.dry_run:
        print_result(_said(letters, wanted, runs))
        return
    if asked.drop:
        say(_said(letters, wanted, runs))
        confirm(asked.yes, f"The letters of job {job} were not dropped")
    ended = _run(job, letters, wanted, into, place, embedded=momentary)
    with operators(place) as (client, _):
        brought = _brought(client, back_job(job))
    if asked.drop:
        print_result(f"These letters of job {job} never go back: {asked.reason}")
    else:
        print_result(f"{brought} letters of job {job} are back in {', '.join(wanted.topics)}.")
    if ended is not CloseReason.FINISHED:
        say("the run was stopped before its end; the same command continues it")


def _run(
    job: JobName, letters: LetterTopic, wanted: Wanted, into: _Input, place: CoordinatorLocation, *, embedded: bool
) -> CloseReason:
    try:
        from onceward.driver.pipeline import Pipeline
        from onceward.driver.restarts import Restart
    except ImportError as error:
        raise not_installed("A job that brings letters back", error) from error
    kafka = installed_kinds("brought back")["kafka"]
    source, sink = (part("kafka", where, "brought back") for where in (kafka.letters, kafka.sink))
    address = place.coordinator
    if place.embedded and not embedded:
        address = StateDirectory(state_directory(place.state_dir)).published()
    return Pipeline(
        job=back_job(job),
        source=source(letters.cluster, letters.name, wanted, partitions=into.partitions),
        sink=sink(into.cluster, topics=list(wanted.topics)),
        coordinator=address,
        state_dir=place.state_dir if address is None else None,
        restart=Restart(attempts=_RESTARTS),
        accept_risks=["replication"],
    ).run()


def _said(letters: LetterTopic, wanted: Wanted, runs: Sequence[Run]) -> str:
    """Say what a run would bring back, and what it would leave."""
    counts: Counter[str] = Counter()
    for one in letters_of(JobName(wanted.job), letters):
        refused = wanted.refuses(one.letter, one.written)
        done = one.done_by(runs)
        if done is not None:
            counts[f"were dropped: {done.wanted.drop}" if done.wanted.drop else "are back already"] += 1
        else:
            counts[refused and f"stay: {refused}"] += 1
    would = "be dropped, and never go" if wanted.drop else "go"
    lines = [f"{counts.pop('', 0)} letters would {would} back into {', '.join(wanted.topics)}."]
    return "\n".join([*lines, *(f"{count} {why}." for why, count in counts.most_common())])


def _input(client: OperatorClient, job: JobName, asked: Asked) -> _Input:
    """Return the topics that the job reads, by its positions. Raises RefusedError if it reads no topic of Kafka."""
    newest = client.job(job).last_completed
    cluster_id, topics = origin_of(client.checkpoint(job, newest).snapshots) if newest else ("", {})
    if not topics:
        raise RefusedError(
            f"Job {job} reads no topic of Kafka that its checkpoints name, so there is nothing to bring letters back "
            f"to. {_NOTHING}. Read the letters with a job of your own."
        )
    for name, cluster in clusters_of(asked.servers, asked.systems).items():
        view = ClusterView(cluster)
        with reading_letters(", ".join(topics)):
            if view.absent(list(topics)):
                continue
            here, ids = view.identity(list(topics))
            if here != cluster_id:
                continue
            if recreated := [topic for topic, known in topics.items() if ids[topic] != known]:
                raise RefusedError(
                    f"Topic {', '.join(recreated)} on {name} is not the one that job {job} reads: it was recreated. "
                    f"{_NOTHING}. Start the job first."
                )
            return _Input(cluster=cluster, partitions=Counter(lane.topic for lane in view.lanes(list(topics))))
    raise ConfigurationError(
        f"No named cluster is the one that job {job} reads {', '.join(topics)} from ({cluster_id}), or its topics are "
        f"gone. {_NOTHING}. Name that cluster, too: --systems FILE"
    )


def _brought(client: OperatorClient, name: JobName) -> int:
    """Return how many records the newest generation has written."""
    generation = client.job(name).generation
    return sum(one.records_written for one in client.checkpoints(name, 1000) if one.generation == generation)


def _since(text: str | None) -> int | None:
    """Parse ``--since``. Raises ConfigurationError."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"--since {text}: is no time. {_NOTHING}. Write it as 2026-01-31 or 2026-01-31T14:00:00+01:00."
        ) from None
    return round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
