"""Transactions of any program that hang, for ``onceward doctor`` and ``onceward transactions --hanging``."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from onceward.common.errors import OncewardError
from onceward.common.readable import duration
from onceward.coordinator.service.systems import Systems
from onceward.operate.prompts import say
from onceward.operate.tables import Column, Listing, print_json, print_listings
from onceward.protocol.committing import FoundHanging, HangingTransaction
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.values import NO_GENERATION

__all__ = ["list_hanging", "look", "place", "whose"]


def look(named: Mapping[str, tuple[NamedSystem, Sequence[str]]]) -> Iterator[tuple[str, FoundHanging]]:
    """Yield what is found on each system. ``named``: systems with the topics to look into; none = all topics. What does
    not answer is unknown, and hides nothing else."""
    for name, (system, topics) in named.items():
        try:
            systems = Systems.installed({name: system}, "asked")
            if name in systems.of_kind(system.kind):
                with closing(systems.open(name, NO_GENERATION)) as opened:
                    yield name, opened.hanging(topics or None)
        except OncewardError as error:
            yield name, FoundHanging(unknown=(str(error),))


def place(one: HangingTransaction) -> str:
    return f"{one.topic}-{one.partition} offset {one.offset}"


def whose(one: HangingTransaction) -> str:
    owner = f"of job {one.job}" if one.job is not None else "of another program"
    return f"{one.id}, {owner}" if one.id else "no id is known"


def list_hanging(named: Mapping[str, tuple[NamedSystem, Sequence[str]]], *, as_json: bool) -> None:
    """List them. What could not be looked into goes to standard error."""
    found: list[HangingTransaction] = []
    problems: list[str] = []
    looked_into = 0
    for name, each in look(named):
        found += each.transactions
        looked_into += each.looked_into
        problems += [f"cluster {name}: {why}" for why in each.unknown]
    for problem in problems:
        say(f"unknown: {problem}")
    if as_json:
        print_json(found)
        return
    none = "Nothing is known to hang; what could not be looked into stands above" if problems else "Nothing hangs"
    shown = Listing(
        "cluster",
        Column(name="where", text=True),
        "producer id",
        Column(name="epoch", spare=2),
        Column(name="last record", spare=1),
        Column(name="transactional id", text=True),
        "certain",
        Column(name="what ends it", text=True),
        Column(name="what that means", text=True),
        if_empty=f"{none}: {looked_into} partitions were looked into.",
    )
    for one in found:
        shown.add(
            one.cluster,
            place(one),
            str(one.producer_id),
            str(one.epoch),
            "-" if one.age is None else f"{duration(one.age.total_seconds())} ago",
            whose(one),
            "yes" if one.certain else "unknown",
            one.remedy or f"first let it be known: {one.doubt}",
            one.meaning,
        )
    print_listings([shown])
