"""The right that each method needs. A method that is missing here cannot be served; a test holds that none is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onceward.coordinator.service.rights import Right
from onceward.wire.v1 import operators_pb2 as pb

__all__ = ["NEEDS", "Needs"]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a peer must have to call a method."""

    rights: tuple[Right, ...]
    """One of these for some job, or the call is refused before it is read."""
    of: Callable[[Any], Right]
    """The right for the job that this request names."""
    across: bool = False
    """The request may name no job. Then it shows the jobs that the peer may view."""


def _always(right: Right, *, across: bool = False) -> Needs:
    return Needs(rights=(right,), of=lambda _request: right, across=across)


def _resolve(request: pb.ResolveSlotsRequest) -> Right:
    beyond = request.forced or request.ruling == pb.RULING_GIVEN_UP
    return Right.OVERRIDE if beyond else Right.OPERATE


def _skip(request: pb.SkipInputRequest) -> Right:
    return Right.VIEW if request.only_look else Right.OVERRIDE


_DRIVE, _VIEW, _OPERATE, _OVERRIDE = map(_always, (Right.DRIVE, Right.VIEW, Right.OPERATE, Right.OVERRIDE))

NEEDS: Mapping[str, Needs] = {
    "OpenJob": _DRIVE,
    "Watch": _DRIVE,
    "Acknowledge": _DRIVE,
    "Decline": _DRIVE,
    "Settle": _DRIVE,
    "Amend": _DRIVE,
    "Renew": _DRIVE,
    "CloseJob": _DRIVE,
    "ListJobs": _always(Right.VIEW, across=True),
    "ListLosses": _always(Right.VIEW, across=True),
    "DescribeCoordinator": _always(Right.VIEW, across=True),
    "DescribeJob": _VIEW,
    "ListCheckpoints": _VIEW,
    "DescribeCheckpoint": _VIEW,
    "ListGenerations": _VIEW,
    "ListHistory": _VIEW,
    "DescribeRequest": _VIEW,
    "TriggerCheckpoint": _OPERATE,
    "StopJob": _OPERATE,
    "CancelJob": _OPERATE,
    "RestoreJob": _OPERATE,
    "DeleteSavepoint": _OPERATE,
    "ForgetJob": _OPERATE,
    "CloseOutput": _OPERATE,
    "ResolveSlots": Needs(rights=(Right.OPERATE, Right.OVERRIDE), of=_resolve),
    "PermitTakeover": _OVERRIDE,
    "PermitAdoption": _OVERRIDE,
    "AcknowledgeLoss": _OVERRIDE,
    "SkipInput": Needs(rights=(Right.VIEW, Right.OVERRIDE), of=_skip),
    "ServerReflectionInfo": _VIEW,
}
"""By the name of the method; names are unique over all services. Health checks need no right."""
