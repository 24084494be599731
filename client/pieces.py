"""Send long requests as several messages: the coordinator rejects a long message before it reads it."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc

from onceward.wire.limits import MAX_MESSAGE_BYTES

__all__ = ["in_pieces"]


def in_pieces(channel: grpc.Channel) -> grpc.Channel:
    """Return a channel for stubs whose requests may be longer than one message."""
    return cast(grpc.Channel, _InPieces(channel))


class _InPieces:
    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def unary_unary(
        self, method: str, request_serializer: Callable[[Any], bytes], response_deserializer: Any, **options: Any
    ) -> Callable[..., Any]:
        whole: Any = self._channel.unary_unary(method, None, response_deserializer, **options)
        pieces: Any = self._channel.stream_unary(method, None, response_deserializer, **options)

        def call(request: Any, timeout: float | None = None) -> Any:
            data = request_serializer(request)
            if len(data) <= MAX_MESSAGE_BYTES:
                return whole(data, timeout=timeout)
            return pieces(_cut(data), timeout=timeout)

        return call

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._channel.unary_stream(*arguments, **options)


def _cut(data: bytes) -> Iterator[bytes]:
    for begin in range(0, len(data), MAX_MESSAGE_BYTES):
        yield data[begin : begin + MAX_MESSAGE_BYTES]
