"""``onceward health``: check whether a coordinator accepts calls, for supervisors and containers. Changes nothing."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

from onceward.client.calls import open_channel
from onceward.client.tls import CoordinatorTls, diagnose
from onceward.operate.prompts import print_result, say
from onceward.wire.lead import LIVE, READY

__all__ = ["run_health"]

_TIMEOUT_S = 4.0
"""Shorter than the usual timeout of a container engine's check."""
_MEANS = {"": "serves", READY: "leads, or could lead", LIVE: "lives"}
_LACKS = {"": "it starts, stands by or stops", READY: "it cannot use its store, or stops", LIVE: "it stops"}


def run_health(address: str, service: str = "") -> int:
    """Ask the standard gRPC health service once; return 0 when it serves, else 1 with the reason on standard error.

    :param address: ``HOST:PORT``. Raises ConfigurationError when it is not an address.
    :param service: what must serve: READY, LIVE, or by default the coordinator that takes calls.
    """
    tls = CoordinatorTls.from_environment()
    with open_channel(address, tls=tls) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            why = diagnose(address, tls) or f"{error.code().name}, {error.details()}"
            say(f"{address} does not answer: {why}")
            return 1
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        print_result(f"{address} {_MEANS[service]}")
        return 0
    say(f"{address} answers, but takes no calls: {_LACKS[service]}")
    return 1
