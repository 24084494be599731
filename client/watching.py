"""The instruction stream of one session: a thread that keeps the stream open and delivers its instructions."""

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from onceward.client.calls import REFUSALS, Caller, call_backoff, generation_over
from onceward.common.errors import CoordinatorLostError, OncewardError
from onceward.common.printable import log_fields, logger
from onceward.protocol.answers import Instruction
from onceward.wire.answers import answer_from_wire, instruction_from_wire
from onceward.wire.malformed import MalformedError
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.v1.participants_pb2_grpc import ParticipantServiceStub

__all__ = ["WatchThread"]

_log = logger("onceward.client")

_STREAM_S = 3600.0
"""Seconds after which a stream is reopened; an undetected stall lasts no longer than this."""
_STEADY_S = 5.0
"""Seconds that a stream must last to reset the pause; after a shorter stream the pause grows, although it connected."""


class WatchThread:
    """Delivers instructions until closed or until it has reported an error; instructions may repeat."""

    def __init__(
        self,
        caller: Caller,
        request: pb.WatchRequest,
        *,
        deliver: Callable[[Instruction], None],
        on_error: Callable[[OncewardError], None],
    ) -> None:
        self._caller = caller
        self._stub = ParticipantServiceStub(caller.channel)
        self._request = request
        self._deliver = deliver
        self._on_error = on_error
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._call: Any = None
        self._error = (grpc.StatusCode.UNAVAILABLE, "no connection")
        """The last one of a stream."""
        self._thread = threading.Thread(target=self._run, name="onceward-watch", daemon=True)
        self._thread.start()

    def silence(self) -> None:
        """Deliver and report nothing more, but keep the stream open."""
        self._closed.set()

    def close(self) -> None:
        """End the stream; no instruction is delivered afterwards, unless called from a delivery."""
        self.silence()
        with self._lock:
            if self._call is not None:
                self._call.cancel()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._keep_watching()
        except OncewardError as error:
            if not self._closed.is_set():
                self._on_error(error)
        except Exception as error:  # noqa: BLE001 - a driver without instructions must not live on
            if not self._closed.is_set():
                _log.exception("%s", log_fields({"event": "watch_failed"}))
                self._on_error(OncewardError(f"The instructions could not be handled: {error!r}. Start the job again."))

    def _keep_watching(self) -> None:
        backoff, away_since = call_backoff(), time.monotonic()
        while not self._closed.is_set():
            self._caller.require_working("watching for instructions")
            begun = time.monotonic()
            connected = self._watch_once()
            if self._closed.is_set():
                return
            if connected:
                _log.warning("%s", log_fields({"event": "stream_lost", "address": self._caller.address}))
                away_since = time.monotonic()
                if away_since - begun >= _STEADY_S:
                    backoff.reset()
            elif time.monotonic() - away_since >= self._caller.patience_s:
                raise CoordinatorLostError(
                    f"The coordinator at {self._caller.address} has been unreachable for "
                    f"{self._caller.patience_s:g} s: {self._caller.last_reason(*self._error)}. No pre-committed "
                    f"transaction is ended without its decision. {self._caller.remedy}"
                )
            self._closed.wait(backoff.next())

    def _watch_once(self) -> bool:
        """Run one stream to its end. True when it was up. Raises CoordinatorLostError or the error of
        `generation_over`."""
        connected = False
        try:
            with self._lock:
                if self._closed.is_set():
                    return False
                self._call = self._stub.Watch(self._request, timeout=_STREAM_S)
            self._call.initial_metadata()  # the service sends it once it counts the stream
            connected = self._call.is_active()
            if connected:
                self._caller.worked()
            for response in self._call:
                connected = True
                if response.WhichOneof("content") == "end":
                    answer = answer_from_wire(response.end)
                    raise generation_over(self._request.job, self._request.generation, answer)
                instruction = instruction_from_wire(response.instruction)
                if not self._closed.is_set():
                    self._deliver(instruction)
        except grpc.RpcError as error:
            code = error.code()
            if not self._closed.is_set() and code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                self._error = code, error.details() or ""
                self._caller.failed(*self._error, waiting="instructions")
            if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
                raise self._caller.refused(code, error.details() or "", "watching for instructions") from None
            if code in REFUSALS:
                raise CoordinatorLostError(
                    f"The coordinator at {self._caller.address} refuses to instruct job {self._request.job}: "
                    f"{code.name}: {error.details()}. Is it another store? Nothing more is done. Start the job again."
                ) from None
        except MalformedError as error:
            raise self._caller.not_understood(error, "watching for instructions") from None
        except ValueError:
            raise CoordinatorLostError("The client was closed while it was watching for instructions.") from None
        return connected
