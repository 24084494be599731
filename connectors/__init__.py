"""The seam between the driver and a system: everything that a source or a sink of your own needs.

The driver calls a :class:`Source` and the :class:`SinkSession` of a :class:`Sink`; whichever process ends a checkpoint
calls the :class:`System` that it is on. What :meth:`Source.read` and :meth:`SinkSession.write` return runs on
executors, which may import this package: it needs the standard library alone, and loads a name when it is first used.
``examples/custom_sink.py`` is a whole sink.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceward.common.errors import (
        CheckpointFailedError,
        ClaimChangedError,
        ConfigurationError,
        FencedError,
        HaltedError,
        OncewardError,
    )
    from onceward.common.links import Links
    from onceward.connectors.at_rest import ArrowTable, TableAtRest
    from onceward.connectors.interfaces import (
        Assignment,
        Chosen,
        Examined,
        Finding,
        FollowedSource,
        Follower,
        HasWholeRecords,
        JobContext,
        Origin,
        Pace,
        Plan,
        Refusal,
        ReplayRefusedError,
        Replays,
        Rereads,
        Resource,
        ReusesIds,
        Risk,
        Severity,
        Sink,
        SinkSession,
        Source,
        SplitFollower,
        SplitReader,
        Stays,
    )
    from onceward.connectors.slots import (
        AnnouncingSlot,
        CheckingSlot,
        Library,
        NeedsLibraries,
        OpenSlot,
        SlotContext,
        SlotWriter,
        StayingWriter,
        Unfit,
        UnfitKind,
        at_fault,
    )
    from onceward.connectors.tasks import CheckpointTask, Vote
    from onceward.protocol.committing import (
        Age,
        FoundHanging,
        HangingTransaction,
        OpenTransaction,
        Part,
        Place,
        PreCommitted,
        System,
        TransactionHandle,
    )
    from onceward.protocol.kinds import Kind
    from onceward.protocol.read_progress import PartitionLag
    from onceward.protocol.values import (
        NO_CHECKPOINT,
        Author,
        CheckpointId,
        Claim,
        Committable,
        Document,
        Generation,
        JobName,
        JsonObject,
        OnLost,
        Outcome,
        Participant,
        ParticipantName,
        Role,
        Settlement,
    )

__all__ = [
    "NO_CHECKPOINT",
    "Age",
    "AnnouncingSlot",
    "ArrowTable",
    "Assignment",
    "Author",
    "CheckingSlot",
    "CheckpointFailedError",
    "CheckpointId",
    "CheckpointTask",
    "Chosen",
    "Claim",
    "ClaimChangedError",
    "Committable",
    "ConfigurationError",
    "Document",
    "Examined",
    "FencedError",
    "Finding",
    "FollowedSource",
    "Follower",
    "FoundHanging",
    "Generation",
    "HaltedError",
    "HangingTransaction",
    "HasWholeRecords",
    "JobContext",
    "JobName",
    "JsonObject",
    "Kind",
    "Library",
    "Links",
    "NeedsLibraries",
    "OnLost",
    "OncewardError",
    "OpenSlot",
    "OpenTransaction",
    "Origin",
    "Outcome",
    "Pace",
    "Part",
    "Participant",
    "ParticipantName",
    "PartitionLag",
    "Place",
    "Plan",
    "PreCommitted",
    "Refusal",
    "ReplayRefusedError",
    "Replays",
    "Rereads",
    "Resource",
    "ReusesIds",
    "Risk",
    "Role",
    "Settlement",
    "Severity",
    "Sink",
    "SinkSession",
    "SlotContext",
    "SlotWriter",
    "Source",
    "SplitFollower",
    "SplitReader",
    "StayingWriter",
    "Stays",
    "System",
    "TableAtRest",
    "TransactionHandle",
    "Unfit",
    "UnfitKind",
    "Vote",
    "at_fault",
]

_HOMES = (
    "connectors.at_rest",
    "connectors.interfaces",
    "connectors.slots",
    "connectors.tasks",
    "common.errors",
    "common.links",
    "protocol.committing",
    "protocol.kinds",
    "protocol.read_progress",
    "protocol.values",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            found = vars(import_module(f"onceward.{home}"))
            if name in found:
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
