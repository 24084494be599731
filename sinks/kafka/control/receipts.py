"""Receipts: an offset commit inside each transaction, readable afterwards only if that transaction committed.

Group = the transactional id, topic = ``onceward`` (empty, created by the preflight), partition 0, offset = the
checkpoint id, metadata = the token of that transaction. The token is the proof: an id may serve many transactions, a
token only one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse

from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.control.control_plane import ControlPlane, CoordinatorKind, Located, NoAnswer

__all__ = [
    "OFFSETS_TOPIC",
    "RECEIPT_PARTITION",
    "RECEIPT_TOPIC",
    "Offset",
    "Receipt",
    "ReceiptState",
    "read_offsets",
    "read_receipts",
]

RECEIPT_TOPIC = "onceward"
RECEIPT_PARTITION = 0

OFFSETS_TOPIC = "__consumer_offsets"
"""Topic in which the brokers keep offset commits; if it is enlisted in a transaction, the receipt is in it."""

_ABSENT = -1


class ReceiptState(StrEnum):
    """The result of reading a receipt."""

    PRESENT = "present"
    """The token is stored: its transaction committed."""
    ABSENT = "absent"
    """Stable; no token is stored, or another transaction's."""
    UNSTABLE = "unstable"
    """A transaction that commits this offset is still open."""
    NO_ANSWER = "no_answer"
    """Any error: proves nothing."""


@dataclass(frozen=True, kw_only=True)
class Offset:
    """One committed offset as a group coordinator reports it."""

    code: int | NoAnswer = ErrorCode.NONE
    """If it is not NONE, the other fields have no meaning."""
    offset: int = _ABSENT
    metadata: str = ""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The state of one receipt, and the detail behind it as text."""

    state: ReceiptState
    detail: str = ""


def read_offsets(
    control: ControlPlane, groups: list[str], *, stable: bool = True, located: Mapping[str, Located] | None = None
) -> dict[str, Offset]:
    """Return the offset of ``onceward``-0 in each group, from freshly located coordinators.

    ``stable``: the brokers refuse to answer while an open transaction writes the offset. ``located``: ask these.
    """
    requests = {
        # Pinned: versions 8 and 9 identify topics by name, like the older answers of `claim` and of tools.
        group: OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.OffsetFetchRequestGroup(
                    group_id=group,
                    topics=[
                        OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics(
                            name=RECEIPT_TOPIC, partition_indexes=[RECEIPT_PARTITION]
                        )
                    ],
                )
            ],
            require_stable=stable,
            min_version=8,
            max_version=8,
        )
        for group in groups
    }
    answers: dict[str, OffsetFetchResponse | NoAnswer] = control.send_located(
        CoordinatorKind.GROUP, requests, located=located
    )
    return {group: _offset(answer) for group, answer in answers.items()}


def read_receipts(control: ControlPlane, tokens: Mapping[str, str]) -> dict[str, Receipt]:
    """Return the receipt of each transactional id in ``tokens`` (id -> token)."""
    offsets = read_offsets(control, list(tokens))
    return {name: _receipt(offsets[name], token) for name, token in tokens.items()}


def _offset(answer: OffsetFetchResponse | NoAnswer) -> Offset:
    if isinstance(answer, NoAnswer):
        return Offset(code=answer if answer.code is None else answer.code)
    group = answer.groups[0]
    if group.error_code:
        return Offset(code=int(group.error_code))
    for topic in group.topics:
        for partition in topic.partitions:
            if partition.error_code:
                return Offset(code=int(partition.error_code))
            # librdkafka sends the C string with its terminating NUL, and the broker keeps it.
            metadata = str(partition.metadata or "").removesuffix("\0")
            return Offset(offset=int(partition.committed_offset), metadata=metadata)
    return Offset(code=NoAnswer(why="the answer names no partition"))


def _receipt(offset: Offset, token: str) -> Receipt:
    if offset.code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
        return Receipt(state=ReceiptState.UNSTABLE, detail="a transaction that writes it is open")
    if isinstance(offset.code, NoAnswer):
        return Receipt(state=ReceiptState.NO_ANSWER, detail=offset.code.why)
    if offset.code != ErrorCode.NONE:
        return Receipt(state=ReceiptState.NO_ANSWER, detail=f"error {offset.code}")
    if offset.offset >= 0 and offset.metadata == token:
        return Receipt(state=ReceiptState.PRESENT, detail=f"checkpoint {offset.offset}")
    found = "nothing there" if offset.offset < 0 else f"another transaction's, of checkpoint {offset.offset}"
    return Receipt(state=ReceiptState.ABSENT, detail=found)
