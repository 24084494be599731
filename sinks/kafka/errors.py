"""What can go wrong between us and the sink's cluster.

OncewardError
├── ControlPlaneError              the cluster gave no usable answer; nothing is known, nothing was guessed
│   └── ControlPlaneClosedError    nothing was asked: the connections were closed before
├── CheckpointFailedError
│   ├── DeliveryError              a record was not confirmed; the slot does not vote
│   ├── RouteError                 a record names a topic that the sink did not declare
│   └── PreCommitError             a vote's transaction is not open any more, or another's
└── HaltedError
    └── ContradictionError         the broker's state contradicts what was decided; a person must look
"""

from onceward.connections.errors import ControlPlaneClosedError, ControlPlaneError
from onceward.coordinator.errors import CheckpointFailedError, HaltedError

__all__ = [
    "ContradictionError",
    "ControlPlaneClosedError",
    "ControlPlaneError",
    "DeliveryError",
    "PreCommitError",
    "RouteError",
]


class DeliveryError(CheckpointFailedError):
    """Not every record was confirmed by the brokers. The slot does not vote, so nothing of it becomes visible."""


class RouteError(CheckpointFailedError):
    """A record cannot be routed. The checkpoint is declined; its records stay unread."""


class PreCommitError(CheckpointFailedError):
    """A vote cannot be turned into a committable. The checkpoint is declined and its transactions are aborted."""


class ContradictionError(HaltedError):
    """The broker contradicts a durable decision. Nothing further was changed."""
