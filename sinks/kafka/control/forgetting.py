"""Deletes what the brokers keep of a deleted job: its receipts' groups and, last, its claim."""

from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse

from onceward.common.backoff import Backoff
from onceward.protocol.values import Claim
from onceward.sinks.kafka.control.claim_reading import read_claim
from onceward.sinks.kafka.control.clock import Clock, broker_backoff
from onceward.sinks.kafka.control.control_plane import ControlPlane, NoAnswer
from onceward.sinks.kafka.control.fencing import PATIENCE_S, list_open
from onceward.sinks.kafka.control.receipt_cleanup import delete_groups
from onceward.sinks.kafka.errors import ControlPlaneError
from onceward.sinks.kafka.identifiers import TransactionalId, claim_name

__all__ = ["forget_job"]


def forget_job(control: ControlPlane, job: str, last: Claim, clock: Clock) -> None:
    """See :meth:`System.forget`. Raises ControlPlaneError if a transaction is open, or if the brokers do not confirm
    within 30 s."""
    deadline, backoff = clock.monotonic() + PATIENCE_S, broker_backoff()
    found = sorted(map(str, list_open(control, job, clock)))
    if found:
        raise ControlPlaneError(
            f"Transactions of job {job} are open: {', '.join(found[:10])}. Nothing was deleted. The brokers abort them "
            "after their timeout; try again then."
        )
    while receipts := _receipts(control, job, last):
        delete_groups(control, receipts)
        _wait(deadline, backoff, clock, f"{len(receipts)} receipts of job {job} could not be deleted")
    while _is_ours(read_claim(control, job, clock), last):
        delete_groups(control, {claim_name(job)})
        _wait(deadline, backoff, clock, f"the claim of job {job} could not be deleted")


def _receipts(control: ControlPlane, job: str, last: Claim) -> set[str]:
    requests = [(node, ListGroupsRequest(max_version=4)) for node in control.nodes()]
    answers: list[ListGroupsResponse | NoAnswer] = control.send_all(requests)
    groups: set[str] = set()
    for answer in answers:
        if isinstance(answer, NoAnswer):
            raise ControlPlaneError(
                f"Not every broker reports which receipts of job {job} it keeps. Some may be deleted, the claim is "
                "not. Try again when all brokers answer."
            )
        groups |= {str(group.group_id) for group in answer.groups or ()}
    parsed = {name: TransactionalId.parse(name) for name in groups}
    return {name for name, id_ in parsed.items() if id_ and id_.job == job and id_.generation <= last.generation}


def _is_ours(claim: Claim | None, last: Claim) -> bool:
    return claim is not None and claim.store_id == last.store_id and claim.generation <= last.generation


def _wait(deadline: float, backoff: Backoff, clock: Clock, what: str) -> None:
    if clock.monotonic() >= deadline:
        raise ControlPlaneError(f"After 30 s {what}. The remaining groups do no harm. Check the brokers and try again.")
    clock.wait(backoff.next())
