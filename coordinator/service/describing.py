"""What a coordinator says of itself. It answers whether it leads or stands by."""

from collections.abc import Awaitable, Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import grpc

from onceward.coordinator.service.methods import service_handler
from onceward.coordinator.service.peers import Guard
from onceward.wire.listings import COORDINATOR_DESCRIPTION
from onceward.wire.rows import CoordinatorDescription
from onceward.wire.v1 import operators_pb2 as pb

__all__ = ["coordinator_service", "own_version"]


def coordinator_service(
    describe: Callable[[], Awaitable[CoordinatorDescription]], guard: Guard
) -> grpc.GenericRpcHandler:
    """``guard`` holds peers to their rights. ``describe`` may raise StoreError."""

    async def describe_coordinator(_request: pb.DescribeCoordinatorRequest) -> pb.DescribeCoordinatorResponse:
        return COORDINATOR_DESCRIPTION.to_wire(await describe())

    service = pb.DESCRIPTOR.services_by_name["CoordinatorService"]
    return service_handler(service, {"describe_coordinator": describe_coordinator}, {}, guard)


@cache
def own_version() -> str:
    """The version of Onceward that runs; empty if it is not installed."""
    try:
        return version("onceward")
    except PackageNotFoundError:
        return ""
