"""RPC methods from plain functions. Requests arrive as bytes, so that this module can reject malformed ones itself."""

import re
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from onceward.common.errors import StoreError
from onceward.coordinator.service.engine import UnknownJobError
from onceward.coordinator.service.needs import NEEDS, Needs
from onceward.coordinator.service.peers import OPEN, Guard, PeerRefusedError
from onceward.coordinator.store.errors import ListingFailedError
from onceward.wire.malformed import MalformedError, as_job
from onceward.wire.v1.operators_pb2 import DescribeJobRequest

__all__ = ["REQUEST_SIZE", "STORE_FAILED", "Function", "parse", "refusal_of", "service_handler"]

STORE_FAILED = "the coordinator lost its store: it ends or stands by, and the next one to lead reads what is stored"

REQUEST_SIZE: ContextVar[int] = ContextVar("request_size")
"""The bytes of the request that a function gets. To ask a long message takes as long as to write it."""

Function = Callable[[Any], Awaitable[Message]]
"""Takes a request, returns a response; raises MalformedError, UnknownJobError, StoreError."""

Stream = Callable[[Any, "grpc.aio.ServicerContext[bytes, bytes]"], Any]
"""A coroutine function that writes serialized responses itself."""

_JustTheJob = DescribeJobRequest
"""Reads the job of any request without the rest: all have it in the same field."""


def service_handler(
    service: ServiceDescriptor,
    functions: Mapping[str, Function],
    streams: Mapping[str, Stream],
    guard: Guard = OPEN,
) -> grpc.GenericRpcHandler:
    """A handler for every method of ``service``. Raises KeyError when a method has no function of its snake_case name,
    or when it is not said which right it needs."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in service.methods:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
        check = _Check(guard, method.name, NEEDS[method.name])
        if method.server_streaming:
            handlers[method.name] = grpc.unary_stream_rpc_method_handler(_streaming(method, streams[name], check))
        else:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(_unary(method, functions[name], check))
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def parse(method: MethodDescriptor, data: bytes) -> Message:
    """Parse a request of ``method``. Raises MalformedError."""
    try:
        return message_factory.GetMessageClass(method.input_type).FromString(data)
    except DecodeError as error:
        raise MalformedError(f"not a {method.input_type.full_name} message: {error}") from None


@dataclass(frozen=True)
class _Check:
    """Holds a call to the rights of its peer; who that is was found out before the request was read."""

    guard: Guard
    name: str
    needs: Needs

    def unread(self, data: bytes) -> None:
        """Check the job before the rest is parsed. Raises PeerRefusedError, MalformedError."""
        if not self.guard.distinguishes:
            return
        try:
            job = _JustTheJob.FromString(data).job
        except DecodeError:
            raise MalformedError("not a message that names a job") from None
        if job or not self.needs.across:
            self.guard.require(self.name, self.needs, as_job(job))

    def read(self, request: Any) -> None:
        """Check what only the whole request says. Raises PeerRefusedError."""
        job = getattr(request, "job", "")
        if self.guard.distinguishes and (job or not self.needs.across):
            self.guard.require(self.name, self.needs, as_job(job), self.needs.of(request))


def _unary(method: MethodDescriptor, function: Function, check: _Check) -> Any:
    async def answer(data: bytes) -> bytes:
        check.unread(data)
        request = parse(method, data)
        REQUEST_SIZE.set(len(data))
        check.read(request)
        return (await function(request)).SerializeToString()

    async def call(data: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        try:
            return await answer(data)
        except _REFUSALS as error:
            refusal = refusal_of(error)
        # An aborted call becomes a reference cycle: release its data now, not when the garbage collector runs.
        del data
        await context.abort(*refusal)
        raise AssertionError("abort raises")

    return call


def _streaming(method: MethodDescriptor, stream: Stream, check: _Check) -> Any:
    async def call(data: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        try:
            check.unread(data)
            request: Any = parse(method, data)
            check.read(request)
            right = check.needs.of(request)
            async with check.guard.as_long_as_permitted(check.name, right, request.job):
                await stream(request, context)
        except _REFUSALS as error:
            await context.abort(*refusal_of(error))

    return call


_Refusal: TypeAlias = MalformedError | UnknownJobError | StoreError | PeerRefusedError
_REFUSALS = (MalformedError, UnknownJobError, StoreError, PeerRefusedError)


def refusal_of(error: _Refusal) -> tuple[grpc.StatusCode, str]:
    """The status and the reason with which a call is aborted."""
    match error:
        case MalformedError():
            return grpc.StatusCode.INVALID_ARGUMENT, str(error)[:1000]
        case UnknownJobError():
            return grpc.StatusCode.NOT_FOUND, str(error)
        case ListingFailedError():
            return grpc.StatusCode.UNAVAILABLE, str(error)
        case StoreError():
            return grpc.StatusCode.UNAVAILABLE, STORE_FAILED
        case PeerRefusedError(code=code):
            return code, str(error)
