"""The participants' service: requests to events, answers to responses."""

import grpc

from coordinator.protocol.answers import Answer
from coordinator.protocol.events import Event
from coordinator.service.engine import Engine
from coordinator.service.methods import Function, service_handler
from coordinator.service.watchers import Watchers
from coordinator.v1 import participants_pb2 as pb
from coordinator.wire import requests
from coordinator.wire.answers import answer_to_wire, grant_to_wire
from coordinator.wire.malformed import as_job

__all__ = ["participant_service"]


def participant_service(engine: Engine, watchers: Watchers) -> grpc.GenericRpcHandler:
    """Everything that a driver can call."""

    def handle(job: str, event: Event, size: int = 0) -> pb.Answer:
        return answer_to_wire(engine.handle(as_job(job), event, size=size))

    def open_job(request: pb.OpenJobRequest) -> pb.OpenJobResponse:
        answer: Answer = engine.handle(as_job(request.job), requests.open_job(request, engine.clock()))
        grant = grant_to_wire(answer.grant) if answer.grant is not None else None
        return pb.OpenJobResponse(answer=answer_to_wire(answer), grant=grant)

    def acknowledge(request: pb.AcknowledgeRequest) -> pb.AcknowledgeResponse:
        event = requests.acknowledge(request, engine.clock())
        return pb.AcknowledgeResponse(answer=handle(request.job, event, request.ByteSize()))

    def decline(request: pb.DeclineRequest) -> pb.DeclineResponse:
        return pb.DeclineResponse(answer=handle(request.job, requests.decline(request, engine.clock())))

    def settle(request: pb.SettleRequest) -> pb.SettleResponse:
        return pb.SettleResponse(answer=handle(request.job, requests.settle(request, engine.clock())))

    def amend(request: pb.AmendRequest) -> pb.AmendResponse:
        event = requests.amend(request, engine.clock())
        return pb.AmendResponse(answer=handle(request.job, event, request.ByteSize()))

    def renew(request: pb.RenewRequest) -> pb.RenewResponse:
        return pb.RenewResponse(answer=handle(request.job, requests.renew(request, engine.clock())))

    def close_job(request: pb.CloseJobRequest) -> pb.CloseJobResponse:
        return pb.CloseJobResponse(answer=handle(request.job, requests.close_job(request, engine.clock())))

    async def watch(request: pb.WatchRequest, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        await watchers.watch(engine, request, context)

    functions: dict[str, Function] = {
        "open_job": open_job,
        "acknowledge": acknowledge,
        "decline": decline,
        "settle": settle,
        "amend": amend,
        "renew": renew,
        "close_job": close_job,
    }
    return service_handler(pb.DESCRIPTOR.services_by_name["ParticipantService"], functions, {"watch": watch})
