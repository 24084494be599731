"""RPC methods from plain functions. Requests arrive as bytes, so that this module can reject malformed ones itself."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from onceward.coordinator.errors import StoreError
from onceward.coordinator.service.engine import UnknownJobError
from onceward.coordinator.wire.malformed import MalformedError

__all__ = ["STORE_FAILED", "Function", "parse", "refusal_of", "service_handler"]

STORE_FAILED = "the coordinator lost its store: it ends or stands by, and the next one to lead reads what is stored"

Function = Callable[[Any], Awaitable[Message]]
"""Takes a request, returns a response; raises MalformedError, UnknownJobError, StoreError."""

Stream = Callable[[Any, "grpc.aio.ServicerContext[bytes, bytes]"], Any]
"""A coroutine function that writes serialized responses itself."""


def service_handler(
    service: ServiceDescriptor, functions: Mapping[str, Function], streams: Mapping[str, Stream]
) -> grpc.GenericRpcHandler:
    """A handler for every method of ``service``. Raises KeyError when a method has no function of its snake_case
    name."""
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in service.methods:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
        if method.server_streaming:
            handlers[method.name] = grpc.unary_stream_rpc_method_handler(_streaming(method, streams[name]))
        else:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(_unary(method, functions[name]))
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def parse(method: MethodDescriptor, data: bytes) -> Message:
    """Parse a request of ``method``. Raises MalformedError."""
    try:
        return message_factory.GetMessageClass(method.input_type).FromString(data)
    except DecodeError as error:
        raise MalformedError(f"not a {method.input_type.full_name} message: {error}") from None


def _unary(method: MethodDescriptor, function: Function) -> Any:
    async def call(data: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        try:
            return (await function(parse(method, data))).SerializeToString()
        except (MalformedError, UnknownJobError, StoreError) as error:
            refusal = refusal_of(error)
        # An aborted call becomes a reference cycle: release its data now, not when the garbage collector runs.
        del data
        await context.abort(*refusal)
        raise AssertionError("abort raises")

    return call


def _streaming(method: MethodDescriptor, stream: Stream) -> Any:
    async def call(data: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        try:
            await stream(parse(method, data), context)
        except (MalformedError, UnknownJobError, StoreError) as error:
            await context.abort(*refusal_of(error))

    return call


def refusal_of(error: MalformedError | UnknownJobError | StoreError) -> tuple[grpc.StatusCode, str]:
    """The status and the reason with which a call is aborted."""
    match error:
        case MalformedError():
            return grpc.StatusCode.INVALID_ARGUMENT, str(error)[:1000]
        case UnknownJobError():
            return grpc.StatusCode.NOT_FOUND, str(error)
        case StoreError():
            return grpc.StatusCode.UNAVAILABLE, STORE_FAILED
