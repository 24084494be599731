"""gRPC's channel arguments, for both sides: how a silent peer is detected."""

from dataclasses import dataclass

__all__ = ["KeepAlive"]


@dataclass(frozen=True, kw_only=True)
class KeepAlive:
    """Pings after ``time_ms`` without traffic; a peer that does not answer within ``timeout_ms`` counts as gone."""

    time_ms: int = 4_000
    timeout_ms: int = 7_000
    """Longer than any acceptable round trip: on a slow path a late answer must not look like none."""

    def client_arguments(self) -> list[tuple[str, int]]:
        return [
            ("grpc.keepalive_time_ms", self.time_ms),
            ("grpc.keepalive_timeout_ms", self.timeout_ms),
            # without this, a silent peer is detected only after a minute
            ("grpc.http2.ping_timeout_ms", self.timeout_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]

    def server_arguments(self) -> list[tuple[str, int]]:
        return [
            *self.client_arguments(),
            # allow the pings of Onceward's clients, and do not punish more frequent ones
            ("grpc.http2.min_recv_ping_interval_without_data_ms", min(1_000, self.time_ms // 2)),
            ("grpc.http2.max_ping_strikes", 0),
        ]
