"""The base of channels that stand between stubs and gRPC's."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

__all__ = ["StubChannel"]


class StubChannel(ABC):
    """The part of ``grpc.Channel`` that generated stubs use."""

    @abstractmethod
    def method(self, kind: str, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Return what calls a method. ``kind``: the name of the method of ``grpc.Channel``, which takes the rest."""

    @abstractmethod
    def close(self) -> None: ...

    def unary_unary(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self.method("unary_unary", *arguments, **options)

    def unary_stream(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self.method("unary_stream", *arguments, **options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self.method("stream_unary", *arguments, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
