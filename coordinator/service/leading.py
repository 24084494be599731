"""The gate to the coordinator that leads, if this process has one. Only a coordinator that certainly leads answers, and
each answer carries its term, so that clients can ignore a late one."""

from collections.abc import Collection
from typing import Any

import grpc

from onceward.common.errors import StoreError
from onceward.coordinator.service.coordinator import Coordinator
from onceward.coordinator.service.methods import refusal_of
from onceward.wire.lead import LEADER, TERM

__all__ = ["Gate"]


class Gate(grpc.GenericRpcHandler):
    """Passes calls to a coordinator, or refuses them.

    :param methods: ``/package.Service/Method`` of all that a coordinator has.
    """

    def __init__(self, methods: Collection[str]) -> None:
        self._methods = frozenset(methods)
        self._coordinator: Coordinator | None = None
        self._term = ""
        self.reason = "the coordinator starts"
        """Why calls are refused."""
        self._leader = ""

    def open(self, coordinator: Coordinator) -> None:
        self._coordinator, self._term = coordinator, str(coordinator.store.term.number)

    def close(self, reason: str, leader: str = "") -> None:
        """Refuse calls. ``leader``: the address of the coordinator that leads, if known."""
        self._coordinator, self.reason, self._leader = None, reason, leader

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        coordinator = self._coordinator
        if coordinator is None:
            known = handler_call_details.method in self._methods
            return grpc.stream_unary_rpc_method_handler(self._refuse) if known else None
        for service in coordinator.services:
            found = service.service(handler_call_details)
            if found is not None:
                return _confirmed(found, coordinator, ((TERM, self._term),))
        return None

    async def _refuse(self, _requests: object, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        if self._leader:
            context.set_trailing_metadata(((LEADER, self._leader),))
        await context.abort(grpc.StatusCode.UNAVAILABLE, self.reason)


Metadata = tuple[tuple[str, str], ...]


def _confirmed(
    handler: "grpc.RpcMethodHandler[Any, Any]", coordinator: Coordinator, term: Metadata
) -> "grpc.RpcMethodHandler[Any, Any]":
    unary, stream = handler.unary_unary, handler.unary_stream

    async def call(data: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        pending: Any = unary(data, _ConfirmedContext(context, coordinator, term))  # type: ignore[arg-type, misc]
        del data  # an aborted call becomes a reference cycle, which must not hold it
        answer: bytes = await pending
        await _confirm(coordinator, context)
        context.set_trailing_metadata(term)
        return answer

    async def watch(data: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
        await stream(data, _ConfirmedContext(context, coordinator, term))  # type: ignore[arg-type, misc]

    return (
        grpc.unary_unary_rpc_method_handler(call) if unary is not None else grpc.unary_stream_rpc_method_handler(watch)
    )


async def _confirm(coordinator: Coordinator, context: "grpc.aio.ServicerContext[bytes, bytes]") -> None:
    try:
        await coordinator.confirm()
    except StoreError as error:
        await context.abort(*refusal_of(error))


class _ConfirmedContext:
    """Confirms before it writes, or refuses: a refusal says what this coordinator knows, and a former leader does not
    know the jobs that began after it."""

    def __init__(
        self, context: "grpc.aio.ServicerContext[bytes, bytes]", coordinator: Coordinator, term: Metadata
    ) -> None:
        self._context, self._coordinator, self._term = context, coordinator, term
        self._begun = False

    async def send_initial_metadata(self, _metadata: object = ()) -> None:
        await _confirm(self._coordinator, self._context)
        self._begun = True
        await self._context.send_initial_metadata(self._term)

    async def write(self, message: bytes) -> None:
        if not self._begun:
            await self.send_initial_metadata()
        await _confirm(self._coordinator, self._context)
        await self._context.write(message)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        await _confirm(self._coordinator, self._context)
        await self._context.abort(code, details)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
