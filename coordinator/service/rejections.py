"""Counts calls that end with a gRPC status other than OK: malformed, unknown job, too large, without the right."""

from collections.abc import Callable
from typing import Any

import grpc

__all__ = ["counted"]


def counted(handler: grpc.GenericRpcHandler, rejected: Callable[[str, str], None]) -> grpc.GenericRpcHandler:
    """Wrap ``handler``, and call ``rejected`` with the method's name and the status of each call that it aborts."""
    return _Counted(handler, rejected)


class _Counted(grpc.GenericRpcHandler):
    def __init__(self, handler: grpc.GenericRpcHandler, rejected: Callable[[str, str], None]) -> None:
        self._handler = handler
        self._rejected = rejected

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        found = self._handler.service(handler_call_details)
        if found is None:
            return None
        # one of our methods: the handler has found it, so a peer cannot make up names
        name = handler_call_details.method.rpartition("/")[2]
        for kind, make in (
            ("unary_unary", grpc.unary_unary_rpc_method_handler),
            ("stream_unary", grpc.stream_unary_rpc_method_handler),
            ("unary_stream", grpc.unary_stream_rpc_method_handler),
            ("stream_stream", grpc.stream_stream_rpc_method_handler),
        ):
            if (function := getattr(found, kind)) is not None:
                return make(self._watched(name, function), found.request_deserializer, found.response_serializer)
        return found

    def _watched(self, name: str, function: Any) -> Any:
        async def call(request: object, context: "grpc.aio.ServicerContext[Any, Any]") -> object:
            try:
                return await function(request, context)
            except grpc.aio.AbortError:
                code = context.code()
                self._rejected(name, code.name.lower() if isinstance(code, grpc.StatusCode) else "unknown")
                raise

        return call
