"""Aborts with confirmation: by EndTxn for a known transaction, by the fence where only the id is known.

Each call returns once the brokers have confirmed, and raises after 30 s. An unconfirmed abort does not count as done,
but no caller waits forever: remaining transactions end by their timeout or in the next sweep.
"""

from collections.abc import Callable, Collection, Sequence

from onceward.common.errors import FencedError
from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.control.brokers import topic_facts
from onceward.sinks.kafka.control.clock import Clock, broker_backoff
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.finishing import Finishing
from onceward.sinks.kafka.control.hanging import LAST_EPOCH, Hanging, hangs
from onceward.sinks.kafka.control.outcomes import EndAnswer, classify, describe_code
from onceward.sinks.kafka.control.parts import look_for_open
from onceward.sinks.kafka.control.receipts import OFFSETS_TOPIC
from onceward.sinks.kafka.control.transactions import (
    OVER,
    Code,
    Listed,
    State,
    Transaction,
    Transactions,
    TransactionView,
)
from onceward.sinks.kafka.errors import ContradictionError, ControlPlaneError
from onceward.sinks.kafka.identifiers import TransactionalId

__all__ = ["PATIENCE_S", "abort_transactions", "fence_ids", "list_open", "refuse_newer"]

PATIENCE_S = 30.0


def fence_ids(
    control: ControlPlane, ids: Collection[str], clock: Clock, *, topics: Collection[str] | None = ()
) -> None:
    """Abort the open transaction of each id and fence every older epoch, with confirmation.

    At its producer's last epoch, a fence takes the producer id from an id, and then nothing can end what hangs of it:
    so there EndTxn aborts the transaction, and what hangs is finished, before the fence. It is looked for where the
    transaction was open, and in ``topics`` (None: all).

    Never call it for the id of a transaction that is undecided, or decided as committed but not settled.
    Raises ControlPlaneError.
    """
    transactions = Transactions(control)
    begun: dict[str, TransactionView] = {}
    looks = {name: Finishing(control, clock) for name in ids}

    def attempt(left: Collection[str]) -> dict[str, Code]:
        waiting: dict[str, Code] = {}
        for name, view in transactions.describe(left).items():
            if view.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue
            if view.code != ErrorCode.NONE:
                waiting[name] = view.code
            elif view.state is State.ONGOING:
                begun.setdefault(name, view)
                if view.epoch >= LAST_EPOCH:  # with transaction.version 2 the fence's abort takes the producer id, too
                    pair = Transaction(id=name, producer_id=view.producer_id, epoch=view.epoch, version=4)
                    transactions.end([pair], commit=False)
                    waiting[name] = ErrorCode.CONCURRENT_TRANSACTIONS
            elif not _may_be_fenced(control, begun.get(name), view, topics, looks[name]):
                waiting[name] = ErrorCode.CONCURRENT_TRANSACTIONS
        codes = transactions.fence([name for name in left if name not in waiting])
        # Every refusal is retried: only NONE confirms that older epochs are fenced.
        return waiting | {name: code for name, code in codes.items() if code != ErrorCode.NONE}

    _until_done(attempt, ids, clock, "fence")
    for name, look in looks.items():
        look.shown(name)


def _may_be_fenced(
    control: ControlPlane,
    begun: TransactionView | None,
    view: TransactionView,
    topics: Collection[str] | None,
    finishing: Finishing,
) -> bool:
    """Return whether nothing hangs of an id that is not open and whose producer id a fence would take. Takes a look if
    something does; False, too, while a leader does not answer. ``begun``: the view when it was open. Raises
    ControlPlaneError if it cannot be finished."""
    producer_id = view.producer_id if begun is None else begun.producer_id
    if view.epoch < LAST_EPOCH and view.producer_id == producer_id:
        return True
    if view.state not in OVER:
        return False
    wrote = {} if begun is None else {name: its for name, its in begun.partitions.items() if name != OFFSETS_TOPIC}
    facts = topic_facts(control, None if topics is None else {*topics, *wrote})
    found, _, silent = look_for_open(control, facts)
    if any(begun is None or number in wrote.get(name, ()) for name, number in silent):
        return False  # no one knows what hangs there, and brokers skip markers just then
    places = {part.place: part.first_offset for part in found if part.producer_id == producer_id}
    if not places:
        return True
    one = Hanging(id=view.id, producer_id=producer_id, places=places, group=view.id)
    if (why := finishing.look(one, view, commit=False)) is not None:
        raise ControlPlaneError(hangs(control, f"{view.id} was to be fenced and has ended", one, why))
    return False


def abort_transactions(control: ControlPlane, handles: Sequence[KafkaCommittable], clock: Clock) -> None:
    """Abort exactly these transactions, with confirmation; already aborted or fenced ones count as done.

    Raises ContradictionError if one was committed, ControlPlaneError.
    """
    transactions = Transactions(control)
    by_id = {handle.transaction.id: handle.transaction for handle in handles}

    def attempt(left: Collection[str]) -> dict[str, Code]:
        located = transactions.locate(left)
        codes = transactions.end([by_id[name] for name in left], commit=False, located=located)
        refused = [name for name, code in codes.items() if classify(code) is EndAnswer.DOUBT]
        views = transactions.describe(refused)
        for name in refused:
            if _is_over(by_id[name], views[name]):
                codes[name] = ErrorCode.NONE
        return {name: code for name, code in codes.items() if code != ErrorCode.NONE}

    _until_done(attempt, by_id, clock, "abort")


def _is_over(transaction: Transaction, view: TransactionView) -> bool:
    """Return whether a refused abort needs no retry. Raises ContradictionError for a committed transaction."""
    if view.code != ErrorCode.NONE:
        return view.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    at_ours = (view.producer_id, view.epoch) == (transaction.producer_id, transaction.epoch)
    raised = view.producer_id == transaction.producer_id and view.epoch == transaction.epoch + 1
    committed = view.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)  # PREPARE_COMMIT cannot be undone
    if committed and (at_ours or (raised and transaction.version >= 5)):
        raise ContradictionError(
            f"Transaction {transaction.id} (producer {transaction.producer_id}, epoch {transaction.epoch}) was to be "
            "aborted, but it is committed: its records are visible although its checkpoint was aborted, and they may "
            "be written again. Nothing further was changed. Find out who ended it before you start the job again."
        )
    return not at_ours or view.state in (State.COMPLETE_ABORT, State.EMPTY)


def list_open(
    control: ControlPlane,
    job: str,
    clock: Clock,
    *,
    states: Collection[State] = (State.ONGOING,),
    first: Listed | None = None,
) -> list[TransactionalId]:
    """Return every id of ``job`` with an open transaction. Raises ControlPlaneError if a broker does not answer for
    30 s, or if the user may not describe the ids: an incomplete list would leave transactions open unnoticed.
    ``first``: an answer that was just received."""
    transactions = Transactions(control)
    found: list[TransactionalId] = []

    def attempt(left: Collection[str]) -> dict[str, Code]:
        nonlocal found, first
        found, failed = first or transactions.open_ids(job, states=states)
        first = None
        if ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED in failed:
            raise ControlPlaneError(
                f"The open transactions of job {job} are not known: this user may not describe them. Nothing was "
                f"changed; what is open holds readers back. Grant WRITE on TransactionalId prefix '{job}.'; to list "
                "them, DESCRIBE is enough."
            )
        return {name: failed[0] for name in left if failed}

    _until_done(attempt, [job], clock, "list the open transactions of")
    return found


def _until_done(
    attempt: Callable[[Collection[str]], dict[str, Code]], names: Collection[str], clock: Clock, verb: str
) -> None:
    left = sorted(names)
    deadline = clock.monotonic() + PATIENCE_S
    backoff = broker_backoff()
    while left:
        failed = attempt(left)
        left = sorted(failed)
        if not left:
            return
        if clock.monotonic() >= deadline:
            answers = ", ".join(f"{name}: {describe_code(failed[name])}" for name in left)
            raise ControlPlaneError(
                f"Could not {verb} {len(left)} within {PATIENCE_S:.0f} s; the last answers were {answers}. Nothing of "
                "these transactions is visible, but later records of their partitions are held back until they end. "
                "The next sweep tries again; check the brokers and the user's rights on transactional ids."
            )
        clock.wait(backoff.next())


def refuse_newer(job: str, generation: int, found: Sequence[TransactionalId]) -> None:
    """Raise FencedError if ``found`` holds an id of a newer generation.

    It keeps a process that was paused and taken over from aborting its successor's transactions.
    """
    newer = [identifier for identifier in found if identifier.generation > generation]
    if newer:
        raise FencedError(
            f"This process runs generation {generation} of job {job}, but transaction {newer[0]} of generation "
            f"{newer[0].generation} is open: the job was taken over. Nothing was changed. Stop this process; the newer "
            "one continues."
        )
