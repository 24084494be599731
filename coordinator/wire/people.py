"""Operators' requests as messages. Decoding raises MalformedError."""

from onceward.coordinator.protocol.requests import Request
from onceward.coordinator.protocol.values import RequestId
from onceward.coordinator.v1 import operators_pb2 as pb
from onceward.coordinator.wire.enums import CHECKPOINT_KIND, REQUEST_STATE
from onceward.coordinator.wire.limits import MAX_TEXT
from onceward.coordinator.wire.malformed import as_base, as_token

__all__ = ["request_from_wire", "request_to_wire"]


def request_to_wire(value: Request) -> pb.CheckpointRequest:
    return pb.CheckpointRequest(
        request=value.id,
        kind=CHECKPOINT_KIND.to_wire(value.kind),  # type: ignore[arg-type]
        name=value.name,
        stop=value.stop,
        state=REQUEST_STATE.to_wire(value.state),  # type: ignore[arg-type]
        checkpoint=value.checkpoint,
        detail=value.detail[:MAX_TEXT],
    )


def request_from_wire(message: pb.CheckpointRequest) -> Request:
    return Request(
        id=RequestId(as_token(message.request, "request")),
        kind=CHECKPOINT_KIND.from_wire(message.kind),
        name=message.name,
        stop=message.stop,
        state=REQUEST_STATE.from_wire(message.state),
        checkpoint=as_base(message.checkpoint, "checkpoint"),
        detail=message.detail,
    )
