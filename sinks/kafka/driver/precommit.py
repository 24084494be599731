"""From votes to committables: prove that each vote's transaction is open, complete and ours."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from onceward.common.errors import HaltedError
from onceward.connections.codes import ErrorCode
from onceward.connections.topics import TopicFacts
from onceward.connectors.interfaces import Origin
from onceward.connectors.tasks import Vote
from onceward.protocol.values import Author, CheckpointId, Generation, JobName, ParticipantName
from onceward.sinks.kafka.control.brokers import describing_topics
from onceward.sinks.kafka.control.clock import Clock, broker_backoff
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.control_plane import ControlPlane, Located, Operation, together
from onceward.sinks.kafka.control.outcomes import EndAnswer, classify, describe_code
from onceward.sinks.kafka.control.receipts import OFFSETS_TOPIC
from onceward.sinks.kafka.control.recent import KnownPlaces
from onceward.sinks.kafka.control.transactions import Listed, State, Transaction, Transactions, TransactionView
from onceward.sinks.kafka.documents import require_own
from onceward.sinks.kafka.errors import PreCommitError
from onceward.sinks.kafka.identifiers import TransactionalId

__all__ = ["FirstAnswers", "Owner", "ask_brokers", "make_committables", "require_same_topics"]

_PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The owner of the transactions, and the EndTxn version that ends them."""

    job: JobName
    sink: ParticipantName
    generation: Generation
    cluster_name: str
    cluster_id: str
    end_txn_version: int
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    """The sink's topics when the generation began."""

    @property
    def author(self) -> Author:
        """The owner as the author of committables that are made now."""
        only = range(self.generation, self.generation + 1)
        return Author(job=self.job, participant=self.sink, generations=only)


@dataclass(frozen=True, kw_only=True)
class FirstAnswers:
    """What the brokers answer to the requests of a pre-commit that were sent together."""

    located: Mapping[str, Located]
    views: Mapping[str, TransactionView]
    listed: Listed | None
    """None: not asked."""
    topics: Mapping[str, TopicFacts]


def ask_brokers(
    control: ControlPlane,
    owner: Owner,
    checkpoint: CheckpointId,
    votes: Sequence[Vote],
    topics: Collection[str],
    *,
    places: KnownPlaces,
    now: float,
    listing: bool = True,
) -> FirstAnswers:
    """Ask for the votes' transactions, the topics and, with ``listing``, the open transactions of the job: in one wave
    of requests if ``places`` has the coordinators of the votes' ids.

    Raises PreCommitError before any request if a vote is not for a transaction of its own, ControlPlaneError.
    """
    transactions = Transactions(control)
    (located, views), listed, facts = control.run(
        together(
            _describing(transactions, _own_transactions(owner, checkpoint, votes), places, now),
            _listing(transactions, owner.job, wanted=listing),
            describing_topics(control, topics),
        )
    )
    return FirstAnswers(located=located, views=views, listed=listed, topics=facts)


def _listing(transactions: Transactions, job: JobName, *, wanted: bool) -> Operation[Listed | None]:
    return (yield from transactions.listing_open_ids(job)) if wanted else None


def _describing(
    transactions: Transactions, ids: Collection[str], places: KnownPlaces, now: float
) -> Operation[tuple[Mapping[str, Located], Mapping[str, TransactionView]]]:
    located = places.of(ids, now)
    if located is None:
        located = yield from transactions.locating(ids)
        places.learn(located, now)
    views = yield from transactions.describing(ids, located=located)
    if any(view.code != ErrorCode.NONE for view in views.values()):
        places.forget()
    return located, views


def make_committables(
    control: ControlPlane,
    owner: Owner,
    checkpoint: CheckpointId,
    votes: Sequence[Vote],
    origins: Sequence[Origin],
    clock: Clock,
    *,
    first: FirstAnswers,
    before: Callable[[str], tuple[int, int] | None] = lambda _suffix: None,
) -> tuple[KafkaCommittable, ...]:
    """Return one committable per vote that has a transaction, in slot order like ``votes``. Raises PreCommitError.

    ``first``: what :func:`ask_brokers` returned; what it leaves open is asked again. ``before``: id suffix -> (producer
    id, epoch) of the id's last settled transaction. A coordinator that still shows that one is outdated: each
    transaction has a higher epoch, or another producer id.
    """
    by_id = _own_transactions(owner, checkpoint, votes)
    moment = clock.now()
    views = _described(Transactions(control), by_id, checkpoint, clock, before, first.views)
    return tuple(
        KafkaCommittable(
            slot=vote.slot,
            checkpoint=checkpoint,
            cluster_name=owner.cluster_name,
            cluster_id=owner.cluster_id,
            transaction=Transaction(
                id=name, producer_id=views[name].producer_id, epoch=views[name].epoch, version=owner.end_txn_version
            ),
            token=str(vote.body["token"]),
            topics={
                str(topic): _written(owner, str(topic), int(count), _partitions(str(topic), vote, views[name]))
                for topic, count in vote.body["topics"].items()
            },
            records=vote.records,
            bytes=vote.bytes,
            inputs=origins[vote.slot].inputs,
            pre_committed=moment,
            timeout=timedelta(milliseconds=views[name].timeout_ms),
            began=_began(views[name]),
            replayable=origins[vote.slot].replayable,
            input_text=origins[vote.slot].text,
        )
        for name, vote in by_id.items()
    )


def _own_transactions(owner: Owner, checkpoint: CheckpointId, votes: Sequence[Vote]) -> dict[str, Vote]:
    """Return the votes that have a transaction by its id. Refuses a vote for the transaction of another: this process
    would end it with its own rights."""
    with_transaction = [vote for vote in votes if vote.body]
    by_id = {str(vote.body["id"]): vote for vote in with_transaction}
    if len(by_id) != len(with_transaction):
        raise PreCommitError(
            f"Two slots of checkpoint {checkpoint} voted for the same transaction. Nothing of it becomes visible; its "
            "records are written again. This is a bug of the writer: please report it."
        )
    for name, vote in by_id.items():
        try:
            require_own(name, owner.author)
        except ValueError as error:
            raise PreCommitError(
                f"The vote of slot {vote.slot} of checkpoint {checkpoint} is not to be trusted: {error}. No "
                "transaction of another was touched, nothing of the checkpoint becomes visible, and its records are "
                "written again. Find out what runs on the executors."
            ) from None
    return by_id


def _partitions(topic: str, vote: Vote, view: TransactionView) -> tuple[int, ...]:
    """Those of the vote, if it names them: the view may be older than some of its records."""
    named = vote.body.get("partitions")
    return view.partitions.get(topic, ()) if named is None else tuple(sorted(int(number) for number in named[topic]))


def _written(owner: Owner, topic: str, records: int, partitions: tuple[int, ...]) -> TopicRecords:
    known = owner.topics.get(topic)
    return TopicRecords(
        records=records,
        partitions=partitions,
        id=known.id if known is not None and known.code == ErrorCode.NONE else "",
        count=known.partitions if known is not None and known.code == ErrorCode.NONE else 0,
    )


def _began(view: TransactionView) -> datetime | None:
    return datetime.fromtimestamp(view.started_ms / 1000, tz=UTC) if view.started_ms > 0 else None


def _described(
    transactions: Transactions,
    votes: Mapping[str, Vote],
    checkpoint: CheckpointId,
    clock: Clock,
    before: Callable[[str], tuple[int, int] | None],
    views: Mapping[str, TransactionView],
) -> dict[str, TransactionView]:
    earlier = {name: before(one.suffix) for name in votes if (one := TransactionalId.parse(name)) is not None}
    known: dict[str, TransactionView] = {}
    deadline = clock.monotonic() + _PATIENCE_S
    backoff = broker_backoff()
    while left := [name for name in votes if name not in known]:
        outdated = {name for name, view in views.items() if (view.producer_id, view.epoch) == earlier.get(name)}
        for name, view in views.items():
            if name in outdated:
                continue
            if view.code == ErrorCode.NONE or classify(view.code) is EndAnswer.DOUBT:
                _require_ours(view, votes[name], checkpoint)
                known[name] = view
        if len(known) == len(votes):
            break
        if clock.monotonic() >= deadline:
            answers = ", ".join(
                f"{name}: {'its previous transaction' if name in outdated else describe_code(views[name].code)}"
                for name in left
                if name not in known
            )
            raise PreCommitError(
                f"Checkpoint {checkpoint} cannot be pre-committed: the brokers did not report within {_PATIENCE_S:.0f} "
                f"s whether its transactions are open ({answers}). Nothing of it becomes visible; its records are "
                "written again. Check the brokers."
            )
        clock.wait(backoff.next())
        views = transactions.describe([name for name in votes if name not in known])
    return known


def _require_ours(view: TransactionView, vote: Vote, checkpoint: CheckpointId) -> None:
    written = {str(topic) for topic in vote.body["topics"]}
    enlisted = view.partitions.keys() - {OFFSETS_TOPIC}
    # a vote that names its partitions may be proved before its last records arrive
    fits = enlisted <= written if "partitions" in vote.body else enlisted == written
    if view.code != ErrorCode.NONE:
        why = f"the brokers answer {describe_code(view.code)}"
    elif view.state is not State.ONGOING:
        why = f"it is {view.state} instead of open"
    elif OFFSETS_TOPIC not in view.partitions:
        why = (
            "the brokers show no receipt in the open transaction under its id: either the user lost DESCRIBE on topic "
            f"{OFFSETS_TOPIC}, or the transaction is another program's"
        )
    elif not fits:
        why = (
            f"the open transaction under its id wrote to {sorted(enlisted)} instead of {sorted(written)}, as far as "
            "this user may describe topics"
        )
    elif view.timeout_ms != vote.body["timeout_ms"]:
        why = f"the open transaction under its id has a timeout of {view.timeout_ms} ms, so it is another program's"
    else:
        return
    raise PreCommitError(
        f"Slot {vote.slot} of checkpoint {checkpoint} voted for transaction {view.id}, but {why}. Nothing of the "
        "checkpoint becomes visible; its records are written again. If it happens again, look for another program "
        "that uses the job's transactional ids, at the user's rights, and at the transaction timeout."
    )


def require_same_topics(cluster_name: str, now: Mapping[str, TopicFacts], ids: Mapping[str, str]) -> None:
    """Check that topics still have their ``ids`` (topic -> id).

    Raises HaltedError if an id differs: the topic was deleted and recreated, and the job's earlier output is gone.
    Raises PreCommitError if a topic does not exist.
    """
    for name, known in ids.items():
        if now[name].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise PreCommitError(
                f"Sink topic {name} is not on cluster {cluster_name!r} any more. Nothing of the checkpoint "
                "becomes visible; its records are written again. Find out who deleted it: what this job had "
                "written is gone."
            )
        if known and now[name].id and known != now[name].id:
            raise HaltedError(
                f"Sink topic {name} was deleted and recreated while this job ran: its id was {known} and is "
                f"{now[name].id}. What the job had written to the former one is gone; the running checkpoint is "
                "aborted, its records are written again. Start the job again to continue in the new topic. If it "
                "shall have the former records too, restore an older checkpoint before, or begin under another name."
            )
