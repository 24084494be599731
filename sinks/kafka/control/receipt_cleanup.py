"""Deletes receipts that are no longer needed, to keep the number of consumer groups on the brokers small.

A receipt answers one question: did this transaction commit? Once a generation has settled a checkpoint, all
transactions of lower generations are settled or aborted, and the store knows it, because a checkpoint completes only if
its base is settled. Within a generation, receipts of ids that are no longer used are deleted
(`onceward.sinks.kafka.driver.reuse`).

Best effort: the next generation deletes what remains, or it expires. Nothing depends on the deletion.
"""

from collections.abc import Collection, Iterable

from kafka.protocol.admin import DeleteGroupsRequest, DeleteGroupsResponse, ListGroupsRequest, ListGroupsResponse

from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.control.control_plane import ControlPlane, CoordinatorKind, NoAnswer
from onceward.sinks.kafka.control.transactions import State, Transactions
from onceward.sinks.kafka.errors import ControlPlaneError
from onceward.sinks.kafka.identifiers import TransactionalId

__all__ = ["delete_groups", "delete_older_receipts", "delete_receipts"]

_UNENDED = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)


def delete_receipts(control: ControlPlane, job: str, ids: Collection[str]) -> list[str]:
    """Delete the receipts of these ids of ``job``, which are no longer used and whose transactions are all settled or
    aborted. Returns the deleted groups, as far as brokers answered."""
    try:
        return delete_groups(control, set(ids) - _unended(control, job)) if ids else []
    except ControlPlaneError:
        return []


def delete_older_receipts(control: ControlPlane, job: str, *, below: int) -> list[str]:
    """Delete the receipts (groups) of ``job`` from generations below `below`, for all sink names.

    Call it only when these generations are completely settled. Never deletes groups of other jobs, the claim, or groups
    whose transaction has not ended: that would lose a receipt that is being written. Returns the deleted groups, as far
    as brokers answered.
    """
    try:
        return delete_groups(control, _old(_groups(control), job, below) - _unended(control, job))
    except ControlPlaneError:
        return []


def _old(groups: Iterable[str], job: str, below: int) -> set[str]:
    parsed = {name: TransactionalId.parse(name) for name in groups}
    return {name for name, found in parsed.items() if found and found.job == job and found.generation < below}


def _groups(control: ControlPlane) -> set[str]:
    """Return all groups that the brokers list; groups of brokers that do not answer wait for a later call."""
    requests = [(node, ListGroupsRequest(max_version=4)) for node in control.nodes()]
    answers: list[ListGroupsResponse | NoAnswer] = control.send_all(requests)
    return {
        str(group.group_id) for answer in answers if not isinstance(answer, NoAnswer) for group in answer.groups or ()
    }


def _unended(control: ControlPlane, job: str) -> set[str]:
    found, failed = Transactions(control).open_ids(job, states=_UNENDED)
    if failed:
        raise ControlPlaneError(
            "Not every broker reports its open transactions, so no receipt is deleted. Nothing was changed."
        )
    return {str(identifier) for identifier in found}


def delete_groups(control: ControlPlane, groups: set[str]) -> list[str]:
    """Delete groups; return the deleted ones, as far as brokers answered."""
    by_node: dict[int, list[str]] = {}
    for name, place in control.locate(CoordinatorKind.GROUP, groups).items():
        if place.code == ErrorCode.NONE:
            by_node.setdefault(place.node, []).append(name)
    requests = [(node, DeleteGroupsRequest(groups_names=names)) for node, names in by_node.items()]
    answers: list[DeleteGroupsResponse | NoAnswer] = control.send_all(requests)
    return sorted(
        str(result.group_id)
        for answer in answers
        if not isinstance(answer, NoAnswer)
        for result in answer.results
        if result.error_code == ErrorCode.NONE
    )
