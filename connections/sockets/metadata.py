"""Metadata: which brokers a cluster has, and who leads its partitions."""

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from onceward.connections.sockets.encoding import Decoder, Encoder, GarbledError
from onceward.connections.sockets.requests import Api, Content, Request

__all__ = ["NO_ID", "Address", "Leader", "Metadata", "MetadataRequest", "Topic"]

NO_ID = uuid.UUID(int=0)
_WITH_EPOCHS, _WITH_OPERATIONS, _WITH_IDS = 7, 8, 10


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Leader(NamedTuple):
    node: int
    """-1: there is none."""
    epoch: int
    """-1: unknown."""
    error: int


@dataclass(frozen=True)
class Topic:
    error: int
    id: uuid.UUID
    """`NO_ID`: the broker has no ids."""
    leaders: Mapping[int, Leader]
    """By partition."""


@dataclass(frozen=True)
class Metadata:
    """One answer."""

    brokers: Mapping[int, Address] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)


class MetadataRequest(Request):
    """Asks for topics by their names. Creates none."""

    api = Api.METADATA

    def __init__(
        self, topics: Collection[str], answered: Callable[[Metadata], None], lost: Callable[[str], None]
    ) -> None:
        self._topics, self._answered, self._lost = topics, answered, lost

    def encode(self, version: int, *, flexible: bool) -> Content:
        out = Encoder(flexible=flexible)
        out.array(len(self._topics))
        for topic in self._topics:
            if version >= _WITH_IDS:
                out.raw(NO_ID.bytes)
            out.text(topic)
            out.no_tags()
        out.put("b", False)  # create no topics
        if version in range(_WITH_OPERATIONS, 11):
            out.put("b", False)
        if version >= _WITH_OPERATIONS:
            out.put("b", False)
        out.no_tags()
        return [out.data]

    def answered(self, version: int, answer: Decoder) -> None:
        self._answered(_decoded(version, answer))

    def lost(self, why: str) -> None:
        self._lost(why)


def _decoded(version: int, answer: Decoder) -> Metadata:
    answer.take("i")  # throttle
    brokers: dict[int, Address] = {}
    for _ in answer.array():
        node, host, port = answer.number("i"), answer.text(), answer.number("i")
        answer.text()  # rack
        answer.tags()
        brokers[node] = Address(host or "", port)
    answer.text(), answer.take("i")  # cluster, controller
    topics: dict[str, Topic] = {}
    for _ in answer.array():
        error, name = answer.number("h"), answer.text()
        if name is None:
            raise GarbledError("a topic has no name")
        topic_id = uuid.UUID(bytes=answer.raw(16)) if version >= _WITH_IDS else NO_ID
        answer.take("b")  # internal
        leaders = dict(_leader(version, answer) for _ in answer.array())
        if version >= _WITH_OPERATIONS:
            answer.take("i")
        answer.tags()
        topics[name] = Topic(error, topic_id, leaders)
    return Metadata(brokers, topics)


def _leader(version: int, answer: Decoder) -> tuple[int, Leader]:
    error, partition, node = answer.take("hii")
    epoch = answer.number("i") if version >= _WITH_EPOCHS else -1
    for _replicas_in_sync_and_offline in range(3):
        for _ in answer.array():
            answer.take("i")
    answer.tags()
    return partition, Leader(node, epoch, error)
