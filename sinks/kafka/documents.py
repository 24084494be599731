"""Kind, version and owner of this sink's documents, for a coordinator that has no Kafka client installed."""

from onceward.protocol.values import Author, Document
from onceward.sinks.kafka.identifiers import TransactionalId

__all__ = ["KIND", "VERSION", "check_committable", "require_own"]

KIND = "kafka-transaction"
VERSION = 1
_NEEDED = {"cluster", "transactional_id", "producer_id", "epoch", "end_txn_version", "token", "records", "inputs"}


def check_committable(document: Document, base: Document | None, author: Author) -> None:
    """Validate a committable before the coordinator accepts it.

    Raises ValueError for an unknown version, for a document that lacks what is needed to end its transaction, and for
    one that names the transaction of another.
    """
    if document.version != VERSION:
        raise ValueError(f"it has version {document.version}, and this program knows only version {VERSION}")
    missing = sorted(_NEEDED - document.body.keys())
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    require_own(document.body["transactional_id"], author)


def require_own(transactional_id: object, author: Author) -> None:
    """Check that an id is one of ``author``'s: a coordinator ends transactions with its own rights, which may reach
    those of other jobs and other programs. Raises ValueError."""
    found = TransactionalId.parse(str(transactional_id))
    if found is None or not author.made(found.job, found.sink, found.generation):
        raise ValueError(f"it names transaction {str(transactional_id)!r}, which is none of {author}")
