"""The claim: an offset commit that says which store and generation own a job (docs/protocol.md#claim).

Group ``<job>.claim``, partition 0 of the receipts' topic, offset = the last settled checkpoint, metadata = JSON.
It lives on the sink's cluster, where a second or wiped store would do its damage.
"""

import json

from kafka.protocol.consumer import OffsetCommitRequest

from coordinator.backoff import Backoff
from coordinator.errors import FencedError, HaltedError
from coordinator.protocol.values import CheckpointId, Claim, Generation
from sinks.kafka.control import ControlPlane, CoordinatorKind, NoAnswer
from sinks.kafka.errors import ControlPlaneError
from sinks.kafka.fencing import PATIENCE_S
from sinks.kafka.identifiers import claim_group
from sinks.kafka.outcomes import EndAnswer, classify, describe_code
from sinks.kafka.patience import Clock, broker_backoff
from sinks.kafka.receipts import RECEIPT_PARTITION, RECEIPT_TOPIC, Offset, read_offsets
from sinks.kafka.transactions import Code

__all__ = ["read_claim", "require_held", "write_claim"]

_VERSION = 1


def read_claim(control: ControlPlane, job: str, clock: Clock) -> Claim | None:
    """Who owns ``job``, or None if nobody ever claimed it (or the claim expired).

    Raises ControlPlaneError when the brokers do not say within 30 s, HaltedError when the claim is unreadable.
    """
    group = claim_group(job)
    deadline = clock.monotonic() + PATIENCE_S
    backoff = broker_backoff()
    while True:
        offset = read_offsets(control, [group])[group]
        if offset.code == 0:
            return _parse(job, offset)
        _give_up_or_wait(f"read the claim of job {job}", group, offset.code, deadline, backoff, clock)


def require_held(control: ControlPlane, job: str, claim: Claim, clock: Clock) -> None:
    """Before a claim is renewed: that nobody took the job over meanwhile, from another store or as a newer generation.

    Two stores that never heard of each other grant the same generations; only here do they meet. Raises FencedError,
    ControlPlaneError, HaltedError.
    """
    found = read_claim(control, job, clock)
    if found is not None and (found.store_id != claim.store_id or found.generation > claim.generation):
        raise FencedError(
            f"Job {job} was claimed by store {found.store_id} for generation {found.generation}, while this process "
            f"runs generation {claim.generation} from store {claim.store_id}: it was taken over. What is settled "
            "stays; nothing further is written. Stop this process, or stop the other one and start this one with adopt."
        )


def write_claim(control: ControlPlane, job: str, claim: Claim, clock: Clock) -> None:
    """Say who owns ``job``. Raises ControlPlaneError when the brokers do not confirm within 30 s."""
    group = claim_group(job)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    text = json.dumps(
        {
            "version": _VERSION,
            "store": claim.store_id,
            "generation": claim.generation,
            "settled": claim.settled,
        },
        separators=(",", ":"),
    )
    deadline = clock.monotonic() + PATIENCE_S
    backoff = broker_backoff()
    while True:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                topic(
                    name=RECEIPT_TOPIC,
                    partitions=[
                        topic.OffsetCommitRequestPartition(
                            partition_index=RECEIPT_PARTITION,
                            committed_offset=claim.settled,
                            committed_leader_epoch=-1,
                            committed_metadata=text,
                        )
                    ],
                )
            ],
            min_version=7,
            max_version=8,
        )
        answer = control.send_located(CoordinatorKind.GROUP, {group: request})[group]
        code: Code = answer if isinstance(answer, NoAnswer) else int(answer.topics[0].partitions[0].error_code)
        if code == 0:
            return
        _give_up_or_wait(f"write the claim of job {job}", group, code, deadline, backoff, clock)


def _give_up_or_wait(what: str, group: str, code: Code, deadline: float, backoff: Backoff, clock: Clock) -> None:
    if classify(code) is EndAnswer.DOUBT or clock.monotonic() >= deadline:
        raise ControlPlaneError(
            f"Could not {what}: {describe_code(code)}. No data was changed. Check the brokers, that topic "
            f"{RECEIPT_TOPIC!r} exists, and the user's rights on it and on consumer group {group!r}."
        )
    clock.wait(backoff.next())


def _parse(job: str, offset: Offset) -> Claim | None:
    if offset.offset < 0:
        return None
    try:
        raw = json.loads(offset.metadata)
        if raw["version"] != _VERSION:
            raise ValueError(f"version {raw['version']}")
        return Claim(
            store_id=str(raw["store"]),
            generation=Generation(int(raw["generation"])),
            settled=CheckpointId(int(raw["settled"])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HaltedError(
            f"The claim of job {job} in consumer group {claim_group(job)} cannot be read ({error!r}): something else "
            "wrote there, or a newer release. Nothing was changed. Find out what uses that group, or use that release."
        ) from error
