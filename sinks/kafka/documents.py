"""Kind and version of this sink's documents, for a coordinator that has no Kafka client installed."""

from onceward.coordinator.protocol.values import Document

__all__ = ["KIND", "VERSION", "check_committable"]

KIND = "kafka-transaction"
VERSION = 1
_NEEDED = {"cluster", "transactional_id", "producer_id", "epoch", "end_txn_version", "token", "records", "inputs"}


def check_committable(document: Document, base: Document | None) -> None:
    """Validate a committable before the coordinator accepts it (entry point ``onceward.documents``).

    Raises ValueError for an unknown version, and for a document that lacks what is needed to end its transaction.
    """
    if document.version != VERSION:
        raise ValueError(f"it has version {document.version}, and this program knows only version {VERSION}")
    missing = sorted(_NEEDED - document.body.keys())
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
