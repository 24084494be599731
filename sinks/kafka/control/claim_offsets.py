"""The claim as an offset commit: what it holds, and what the brokers answer about it."""

import json

from kafka.protocol.producer import TxnOffsetCommitRequest

from onceward.common.errors import ClaimChangedError, HaltedError
from onceward.connections.codes import ErrorCode
from onceward.protocol.values import CheckpointId, Claim, Generation
from onceward.sinks.kafka.control.control_plane import ControlPlane, Located, NoAnswer
from onceward.sinks.kafka.control.outcomes import describe_code
from onceward.sinks.kafka.control.receipts import RECEIPT_PARTITION, RECEIPT_TOPIC, Offset, read_offsets
from onceward.sinks.kafka.control.transactions import Code
from onceward.sinks.kafka.errors import ControlPlaneError
from onceward.sinks.kafka.identifiers import claim_name

__all__ = ["METADATA_BYTES", "METADATA_LIMIT", "failed", "offset_commit", "offset_of", "parse", "taken_over"]

METADATA_LIMIT = "offset.metadata.max.bytes"
METADATA_BYTES = 512
"""The brokers must accept as much with an offset: a claim has fewer bytes, and a receipt a few."""
_VERSION = 2


def offset_commit(group: str, claim: Claim) -> dict[str, object]:
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    document = {
        "version": _VERSION,
        "store": claim.store_id,
        "generation": claim.generation,
        "completed": claim.completed,
        "holder": claim.holder,
        "amendment": claim.amendment,
    }
    partition = topic.TxnOffsetCommitRequestPartition(
        partition_index=RECEIPT_PARTITION,
        committed_offset=claim.completed,
        committed_leader_epoch=-1,
        committed_metadata=json.dumps(document, separators=(",", ":")),
    )
    return {
        "group_id": group,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [topic(name=RECEIPT_TOPIC, partitions=[partition])],
    }


def offset_of(control: ControlPlane, group: str, *, stable: bool, at: Located | None = None) -> Offset:
    return read_offsets(control, [group], stable=stable, located=None if at is None else {group: at})[group]


def taken_over(job: str, claim: Claim, found: Claim) -> ClaimChangedError:
    return ClaimChangedError(
        f"Job {job} was claimed by store {found.store_id} for generation {found.generation}, while this process runs "
        f"generation {claim.generation} from store {claim.store_id}: it was taken over. What is settled stays; nothing "
        "further is written. Stop this process; or stop the other one and start this one again: the refusal names the "
        f"claim, and onceward adopt {job} --claim CLAIM --reason 'NAME: REASON' permits it."
    )


def failed(verb: str, job: str, code: Code) -> ControlPlaneError:
    missing: dict[int, str] = {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: f"READ on Topic {RECEIPT_TOPIC!r}",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: f"READ on Group prefix '{job}.'",
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: f"WRITE on TransactionalId prefix '{job}.'",
    }
    right = None if isinstance(code, NoAnswer) else missing.get(code)
    advice = f"Check the brokers, and that topic {RECEIPT_TOPIC!r} exists." if right is None else f"Grant {right}."
    if code == ErrorCode.OFFSET_METADATA_TOO_LARGE:
        advice = f"Raise the brokers' {METADATA_LIMIT} to at least {METADATA_BYTES}; its default is 4096."
    return ControlPlaneError(
        f"Could not {verb} the claim of job {job}: {describe_code(code)}. No data was changed. {advice}"
    )


def parse(job: str, offset: Offset) -> Claim | None:
    if offset.offset < 0:
        return None
    try:
        raw = json.loads(offset.metadata)
        if raw["version"] != _VERSION:
            raise ValueError(f"version {raw['version']}")
        return Claim(
            store_id=str(raw["store"]),
            generation=Generation(int(raw["generation"])),
            completed=CheckpointId(int(raw["completed"])),
            holder=str(raw["holder"]),
            amendment=int(raw.get("amendment", 0)),  # earlier releases did not write it
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HaltedError(
            f"The claim of job {job} in consumer group {claim_name(job)} cannot be read ({error!r}): something else "
            "wrote there, or a newer release. Nothing was changed. Find out what uses that group, or use that release."
        ) from error
