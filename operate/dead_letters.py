"""Where a job's dead letters are, and what they say. Changes nothing."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException

from onceward.client.operators import OperatorClient
from onceward.common.errors import ConfigurationError, PreflightError, RefusedError
from onceward.connections.cluster import KAFKA_TOPIC, KafkaCluster
from onceward.connections.clusters_file import load_clusters
from onceward.connectors.letters import DEAD_LETTERS, LETTER_POSITIONS, Letter, Run, back_job
from onceward.operate.verify.cluster import ClusterView, read_range
from onceward.operate.verify.history import Lane
from onceward.protocol.values import JobName

__all__ = ["Found", "LetterTopic", "clusters_of", "letters_of", "reading_letters", "runs_of", "topic_of"]

_UNREAD = "No letter was read"


@dataclass(frozen=True, kw_only=True)
class LetterTopic:
    """The topic that a job writes its dead letters to."""

    cluster: KafkaCluster
    name: str


@dataclass(frozen=True, kw_only=True)
class Found:
    """A letter in its topic."""

    letter: Letter
    lane: Lane
    offset: int
    at: datetime
    """When it was written, by the record's timestamp."""

    @property
    def written(self) -> int:
        """Milliseconds."""
        return round(self.at.timestamp() * 1000)

    def done_by(self, runs: Sequence[Run]) -> Run | None:
        """Return the first of ``runs`` that has brought it back or dropped it."""
        partition, offset = self.lane.partition, self.offset
        return next((run for run in runs if run.has(self.letter, self.written, partition, offset)), None)


def runs_of(client: OperatorClient, job: JobName) -> Sequence[Run]:
    """Return what has been brought back of the letters of ``job``."""
    name = back_job(job)
    summary = next((one for one in client.jobs() if one.job == name), None)
    if summary is None or not summary.last_completed:
        return ()
    snapshots = client.checkpoint(name, summary.last_completed).snapshots
    documents = [one.positions for one in snapshots.values() if one.positions is not None]
    return [Run.of_json(raw) for one in documents if one.kind == LETTER_POSITIONS for raw in one.body["runs"]]


def topic_of(
    client: OperatorClient, job: JobName, servers: str | None, systems: Path | None, topic: str | None
) -> LetterTopic:
    """Return where ``job`` writes its letters, by what it says of itself. ``topic``: ``[CLUSTER:]TOPIC``, if a person
    says where instead. Raises RefusedError for a job without dead letters, ConfigurationError for what it needs to
    know, and PreflightError if the topic is not there."""
    clusters = clusters_of(servers, systems)
    cluster, _, named = (topic or "").rpartition(":")
    if cluster and cluster not in clusters:
        raise ConfigurationError(
            f"--topic {topic}: the file of --systems names no Kafka cluster {cluster}, only {', '.join(clusters)}. "
            f"{_UNREAD}."
        )
    name = named or _written_to(client, job)
    possible = {cluster: clusters[cluster]} if cluster else clusters
    with reading_letters(name):
        views = {known: ClusterView(one) for known, one in possible.items()}
        having = [known for known, view in views.items() if not view.absent([name])]
    if not having:
        raise PreflightError(
            f"Topic {name} is not there, or this user may not see it: asked {', '.join(possible)}. {_UNREAD}. It needs "
            "the rights DESCRIBE and READ on the topic; if the topic was deleted, its letters are gone."
        )
    if len(having) > 1:
        raise ConfigurationError(
            f"Clusters {', '.join(having)} have a topic {name}. {_UNREAD}. Say which: --topic {having[0]}:{name}"
        )
    return LetterTopic(cluster=possible[having[0]], name=name)


def letters_of(job: JobName, topic: LetterTopic) -> Iterator[Found]:
    """Yield the letters of ``job`` that a ``read_committed`` reader sees now, each partition in order. Raises
    PreflightError."""
    with reading_letters(topic.name):
        view = ClusterView(topic.cluster)
        starts, ends = view.beginnings([topic.name]), stable_ends(view, topic.name)
        for one in read_range(topic.cluster, starts, ends, headers=True):
            letter = Letter.of(one.headers)
            if letter is not None and letter.job == job:
                at = datetime.fromtimestamp(max(one.timestamp, 0) / 1000, UTC)
                yield Found(letter=letter, lane=one.lane, offset=one.offset, at=at)


def stable_ends(view: ClusterView, topic: str) -> Mapping[Lane, int]:
    return {one.lane: one.stable for one in view.ends([topic])}


@contextmanager
def reading_letters(topic: str) -> Iterator[None]:
    """Report what Kafka refuses. Raises PreflightError."""
    try:
        yield
    except KafkaException as error:
        refused = error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        remedy = f"Give this user the right READ on topic {topic}" if refused else "Check the brokers"
        raise PreflightError(
            f"Topic {topic} cannot be read: {error.args[0]}. Nothing was changed. {remedy}."
        ) from error


def clusters_of(servers: str | None, systems: Path | None) -> Mapping[str, KafkaCluster]:
    if (servers is None) == (systems is None):
        raise ConfigurationError(f"Name the brokers, with --servers HOST:PORT or with --systems FILE. {_UNREAD}.")
    if systems is not None:
        return load_clusters(systems)
    return {servers or "": KafkaCluster(servers or "")}


def _written_to(client: OperatorClient, job: JobName) -> str:
    outputs = {one.name: one.place for one in client.describe(job).participants}
    if DEAD_LETTERS not in outputs:
        raise RefusedError(
            f"Job {job} has no dead letters: its program has no dead_letters=, or has not run with it yet. {_UNREAD}. "
            "If an earlier program wrote letters, name their topic: --topic TOPIC"
        )
    kind, _, name = outputs[DEAD_LETTERS].rpartition(" ")
    if kind != KAFKA_TOPIC:
        raise RefusedError(
            f"Job {job} writes its dead letters to {outputs[DEAD_LETTERS] or 'a place that its driver does not say'}. "
            f"{_UNREAD}. Read them there, or name a topic: --topic TOPIC"
        )
    return name
