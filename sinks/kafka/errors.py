"""Errors between Onceward and the sink's cluster.

OncewardError
├── ControlPlaneError              the cluster gave no usable answer; the state is unknown
│   └── ControlPlaneClosedError    no request was sent: the connections were already closed
├── CheckpointFailedError
│   ├── DeliveryError              a record was not confirmed; the slot does not vote
│   ├── RouteError                 a record names a topic that the sink did not declare
│   └── PreCommitError             a vote's transaction is no longer open, or belongs to another program
└── HaltedError
    └── ContradictionError         the broker's state contradicts the decision; a person must look
"""

from onceward.common.errors import CheckpointFailedError, HaltedError
from onceward.connections.errors import ControlPlaneClosedError, ControlPlaneError

__all__ = [
    "ContradictionError",
    "ControlPlaneClosedError",
    "ControlPlaneError",
    "DeliveryError",
    "PreCommitError",
    "RouteError",
]


class DeliveryError(CheckpointFailedError):
    """The brokers did not confirm every record. The slot does not vote, so none of its records becomes visible."""


class RouteError(CheckpointFailedError):
    """A record cannot be routed. The checkpoint is declined; its records stay unread."""


class PreCommitError(CheckpointFailedError):
    """A vote cannot be turned into a committable. The checkpoint is declined and its transactions are aborted."""


class ContradictionError(HaltedError):
    """The broker contradicts a durable decision. Nothing is changed after that."""
