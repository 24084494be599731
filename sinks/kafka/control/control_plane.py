"""The control plane: requests about transactions and groups, each sent to the broker that coordinates it."""

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, islice
from typing import Any, TypeAlias, TypeVar, overload

from kafka.errors import KafkaError
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from onceward.connections.codes import ErrorCode
from onceward.connections.requests import IN_FLIGHT, BrokerRequests, NoAnswer, Request
from onceward.connections.topics import cluster_facts, metadata_request

__all__ = [
    "IN_FLIGHT",
    "TOO_FEW_BROKERS",
    "TRANSACTIONS_TOPIC",
    "ControlPlane",
    "CoordinatorKind",
    "Located",
    "NoAnswer",
    "Operation",
    "Request",
    "coordinators_request",
    "together",
]

T = TypeVar("T")
T2 = TypeVar("T2")
T3 = TypeVar("T3")

Asked: TypeAlias = tuple[int | None, Request]
"""A request, and the broker that it goes to; None for any."""

Operation: TypeAlias = Generator[Sequence[Asked], list[Any], T]
"""Yields what is asked at once, gets the answers in order, and returns its result. Another operation includes it by
``yield from`` or :func:`together`; :meth:`ControlPlane.run` runs it."""


@overload
def together(one: Operation[T], two: Operation[T2], /) -> Operation[tuple[T, T2]]: ...
@overload
def together(one: Operation[T], two: Operation[T2], three: Operation[T3], /) -> Operation[tuple[T, T2, T3]]: ...
def together(*operations: Operation[Any]) -> Operation[tuple[Any, ...]]:
    """Make one operation of several: their n-th requests are sent at once. An error of one ends all."""
    results: dict[Operation[Any], Any] = {}
    answers: dict[Operation[Any], Any] = dict.fromkeys(operations)  # None starts one
    while True:
        asked: dict[Operation[Any], Sequence[Asked]] = {}
        for operation, answer in answers.items():
            try:
                asked[operation] = operation.send(answer)
            except StopIteration as ended:
                results[operation] = ended.value
        if not asked:
            return tuple(results[operation] for operation in operations)
        answered = iter((yield list(chain(*asked.values()))))
        answers = {operation: list(islice(answered, len(requests))) for operation, requests in asked.items()}


_NONE_THERE = ErrorCode.COORDINATOR_NOT_AVAILABLE

TRANSACTIONS_TOPIC = "__transaction_state"
"""Topic in which transaction coordinators keep their state; the leader of a partition coordinates its ids."""


TOO_FEW_BROKERS = (
    "There are no coordinators while there are fewer brokers than transaction.state.log.replication.factor and "
    "offsets.topic.replication.factor say, both 3 by default; a single broker needs 1"
)
"""The cause of COORDINATOR_NOT_AVAILABLE that no waiting removes."""


class CoordinatorKind(IntEnum):
    """The kind of coordinator to find."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, kw_only=True)
class Located:
    """The node of a coordinator, or why it is unknown (a broker error code)."""

    node: int = -1
    code: int = 0


def coordinators_request() -> MetadataRequest:
    """Return the request for :meth:`ControlPlane.coordinators`."""
    return metadata_request([TRANSACTIONS_TOPIC])


class ControlPlane(BrokerRequests):
    """Requests to the brokers of the sink's cluster."""

    last_coordinators: tuple[int, ...] = ()
    """What :meth:`coordinators` returned last: to be asked in the same wave, and used if it is still the same."""

    def run(self, operation: Operation[T]) -> T:
        """Send what the operation asks, and return its result."""
        answers: Any = None  # starts it
        while True:
            try:
                asked = operation.send(answers)
            except StopIteration as ended:
                result: T = ended.value
                return result
            answers = self.send_all(asked)

    def asking(self, request: Request) -> Operation[Any]:
        """Ask any broker. Raises ControlPlaneError without an answer."""
        (answer,) = yield [(None, request)]
        return self.answered(request, answer)

    def transaction_version(self) -> int:
        """Return the cluster's finalized feature ``transaction.version``, 0 if the feature does not exist."""
        return self.run(self.reading_transaction_version())

    def reading_transaction_version(self) -> Operation[int]:
        """See :meth:`transaction_version`."""
        answer: ApiVersionsResponse = yield from self.asking(
            ApiVersionsRequest(client_software_name="onceward", client_software_version="1", min_version=3)
        )
        for feature in answer.finalized_features or ():
            if feature.name == "transaction.version":
                return int(feature.max_version_level)
        return 0

    def highest_version(self, request: type[Request]) -> int:
        """Return the highest version of ``request`` that both sides support. Raises ControlPlaneError."""
        try:
            connected = self._connected()
        except KafkaError as error:
            raise self.unanswered("ApiVersions", f"cannot connect: {error}") from error
        return int(connected.broker_version_data.api_version(request()))

    def coordinators(self, answer: MetadataResponse | NoAnswer) -> tuple[int, ...] | None:
        """Return the brokers that together know every transaction, from the answer to :func:`coordinators_request`;
        None if one is missing: a partition of the coordinators' log has no leader, as after a broker failure. Raises
        ControlPlaneError."""
        found = cluster_facts(self.answered(coordinators_request(), answer))
        # No partition is reported if describing the topic is not allowed, or if no transaction was ever begun.
        leaders = found.topics[TRANSACTIONS_TOPIC].leaders.values()
        self.last_coordinators = found.brokers if set(leaders) <= set(found.brokers) else ()
        return self.last_coordinators or None

    def nodes(self) -> tuple[int, ...]:
        """Return the ids of the brokers that the cluster lists. Raises ControlPlaneError if none answers."""
        return cluster_facts(self.ask(metadata_request(()))).brokers

    def locate(self, kind: CoordinatorKind, keys: Collection[str]) -> dict[str, Located]:
        """Look up the coordinators of ``keys``. Never cached: coordinators move when brokers fail."""
        return self.run(self.locating(kind, keys))

    def locating(self, kind: CoordinatorKind, keys: Iterable[str]) -> Operation[dict[str, Located]]:
        """See :meth:`locate`."""
        unique = sorted(set(keys))
        if not unique:
            return {}
        request = FindCoordinatorRequest(key_type=int(kind), coordinator_keys=unique, min_version=4)
        answer: FindCoordinatorResponse | NoAnswer
        (answer,) = yield [(None, request)]
        if isinstance(answer, NoAnswer):
            return {key: Located(code=ErrorCode.NETWORK_EXCEPTION) for key in unique}
        found = {
            str(entry.key): Located(node=int(entry.node_id), code=int(entry.error_code))
            for entry in answer.coordinators
        }
        self._show_missing(kind, [key for key, place in found.items() if place.code == _NONE_THERE])
        return {key: found.get(key, Located(code=ErrorCode.UNKNOWN_SERVER_ERROR)) for key in unique}

    def _show_missing(self, kind: CoordinatorKind, keys: Sequence[str]) -> None:
        """The brokers answer, so that no link is broken; without this a job would wait without a word."""
        link = f"coordinators of {kind.name.lower()}s of cluster {self.cluster.name!r}"
        if keys:
            why = f"{_NONE_THERE} {_NONE_THERE.name}. {TOO_FEW_BROKERS}"
            self.links.failed(link, why, waiting=f"{len(keys)} FindCoordinator", held=True)
        else:
            self.links.worked(link)

    def asking_located(self, place: Located, request: Request) -> Operation[Any]:
        """Ask one coordinator; :class:`NoAnswer` if it is unlocated."""
        if place.code != ErrorCode.NONE:
            return _nowhere(place)
        (answer,) = yield [(place.node, request)]
        return answer

    def send_located(
        self, kind: CoordinatorKind, keyed: Mapping[str, Request], *, located: Mapping[str, Located] | None = None
    ) -> dict[str, Any]:
        """Send each request to its key's coordinator; an unlocated one gets :class:`NoAnswer`.

        Looks the coordinators up unless ``located`` is given.
        """
        places = self.locate(kind, keyed.keys()) if located is None else located
        sendable = [key for key in keyed if places[key].code == ErrorCode.NONE]
        answers = self.send_all([(places[key].node, keyed[key]) for key in sendable])
        result: dict[str, Any] = {key: _nowhere(places[key]) for key in keyed}
        result.update(zip(sendable, answers, strict=True))
        return result


def _nowhere(place: Located) -> NoAnswer:
    return NoAnswer(why=f"its coordinator is not known (error {place.code})", code=place.code)
