"""The fault profile of a seed's world. Each kind of fault is present in some worlds and absent in others."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from onceward.protocol.values import OnLost
from tests.simulation.executors import TaskFaults
from tests.simulation.network import LinkFaults

__all__ = ["FaultProfile", "alone", "draw"]


@dataclass(frozen=True, kw_only=True)
class FaultProfile:
    """The faults of one world. Times are in virtual seconds, rates per occasion, counts over the time of faults."""

    totals: tuple[int, ...] = (8, 8)
    """Records per input partition."""
    outputs: int = 2
    limit: int = 3
    """Maximum records of one partition per checkpoint."""
    fault_time: float = 6.0
    """Seconds of faults and of arriving input; then both stop."""
    patience: float = 60.0
    """Seconds after the last fault in which everything must finish, on top of the transaction timeout."""
    interval: float = 0.5
    timeout: float = 10.0
    lease: float = 3.0
    stream_grace: float = 1.0
    orphan_grace: float = 30.0
    tolerable: int = 0
    transaction_version: int = 2
    implicit: bool = False
    """Whether producers enlist partitions by writing to them (transaction version 2 only; today's client does not)."""
    transaction_timeout: float = 900.0
    timeout_scan: float = 1.0
    brokers: int = 2
    receipts_kept_minutes: int = 7 * 24 * 60
    marker_delay: float = 0.0
    """Maximum seconds by which a marker is late."""
    skipped_markers: float = 0.0
    """The rate at which a commit of a slot is completed without its marker in a partition."""
    preemption: float = 0.05
    rpc: LinkFaults = field(default_factory=LinkFaults)
    """The link between drivers and the coordinator."""
    kafka: LinkFaults = field(default_factory=LinkFaults)
    """The links to the brokers."""
    table: LinkFaults | None = None
    """The links to a table; by default, those to the brokers are alike."""
    tasks: TaskFaults = field(default_factory=TaskFaults)
    store_failures: float = 0.0
    kill_points: float = 0.0
    coordinator_kills: int = 0
    driver_kills: int = 0
    absence: float = 0.0
    """Maximum extra seconds before a dead driver is started again."""
    gone: bool = False
    """Whether all drivers die during the faults. None is started until readers must be free without one."""
    driver_pauses: int = 0
    coordinator_pauses: int = 0
    standby: bool = False
    """Whether there are two coordinators, on a database that ends the lead of a silent one."""
    late_store: float = 0.0
    """The rate at which a message to or from that database, or a commit in it, is about as late as it tolerates, or
    later."""
    lost_locks: int = 0
    """How often that database frees the lead of a session that continues, which PostgreSQL never does."""
    promotions: int = 0
    """How often an older copy replaces the store, as when an asynchronous standby is promoted: at most once."""
    takeovers: int = 0
    """How often a person starts a second driver beside the first."""
    cuts: int = 0
    """How often the link between drivers and the coordinator is cut."""
    kafka_cuts: int = 0
    moves: int = 0
    """Moves of transaction and group coordinators to other brokers, some unnoticed for a while."""
    broker_failures: int = 0
    """How often a broker stops for a while."""
    hijacks: int = 0
    """How often another program takes over one of our transactional ids."""
    robberies: float = 0.0
    """The rate at which another program takes one over between a decision and its commit."""
    torn: float = 0.0
    """The rate at which an operator aborts one partition with the brokers' own tool between a decision and its
    commit."""
    clean_ups: int = 0
    """How often a tool deletes the consumer group of a receipt."""
    stops: int = 0
    """How often a person stops the job and starts it again."""
    cancels: int = 0
    """How often a person cancels the job and starts it again."""
    wishes: int = 0
    """How often a person asks for a checkpoint or a savepoint, sometimes one that ends the job."""
    on_lost: OnLost = OnLost.REPLAY
    """The sink's policy."""
    worn: float = 0.0
    """The share of transactional ids that begin close to their producer's last epoch."""
    staying: bool = False
    """Whether the job's tasks stay."""
    second_sink: Literal["", "beside", "apart", "table"] = ""
    """Whether the job has a second sink: on the system of the first, on one of its own, or a table. Not with staying
    tasks."""
    task_cuts: int = 0
    """How often the link between drivers and staying tasks is cut."""
    skew: float = 0.0
    """Maximum seconds between a driver's wall clock and the brokers'."""


def draw(random: Random) -> FaultProfile:
    """Draw the faults of a seed."""

    def sometimes(chance: float, value: float) -> float:
        return value if random.random() < chance else 0.0

    def times(chance: float, most: int) -> int:
        return random.randint(1, most) if random.random() < chance else 0

    hijacks = times(0.1, 3)
    kafka = LinkFaults(
        loss=sometimes(0.3, 0.2 * random.random() ** 2),
        duplicate=sometimes(0.3, 0.05 * random.random()),
        slow=sometimes(0.3, 0.05 * random.random()),
    )
    # If another program has used an id since, and the receipt is deleted, a commit looks like an abort. Both
    # together exceed what is promised.
    undisturbed = not hijacks and not kafka.duplicate and not kafka.slow
    short = random.random() < 0.2
    version = random.choice((1, 2))
    totals = (random.randint(4, 10), random.randint(0, 10))
    limit = random.randint(1, 4)
    drawn = FaultProfile(
        totals=totals,
        limit=limit,
        fault_time=random.choice((3.0, 6.0, 10.0)),
        interval=random.choice((0.0, 0.2, 0.5)),
        timeout=random.choice((1.0, 5.0, 20.0)),
        tolerable=random.choice((0, 0, 2)),
        transaction_version=version,
        implicit=version == 2 and random.random() < 0.3,
        transaction_timeout=random.choice((1.0, 3.0, 8.0)) if short else 120.0,
        receipts_kept_minutes=random.choice((1, 7 * 24 * 60, 7 * 24 * 60)),
        marker_delay=random.choice((0.0, 0.01, 0.5)),
        preemption=random.choice((0.0, 0.05, 0.3)),
        rpc=LinkFaults(
            loss=sometimes(0.4, 0.1 * random.random()),
            duplicate=sometimes(0.4, 0.1 * random.random()),
            slow=sometimes(0.4, 0.1 * random.random()),
        ),
        kafka=kafka,
        tasks=TaskFaults(
            fails=sometimes(0.3, 0.1 * random.random()),
            killed=sometimes(0.3, 0.15 * random.random()),
            declared_lost=sometimes(0.3, 0.15 * random.random()),
            stopped=sometimes(0.3, 0.1 * random.random()),
            slow=random.choice((0.0, 0.02, 0.3)),
            idle=random.choice((0.0, 0.0, 0.5)),
        ),
        store_failures=sometimes(0.2, 0.06 * random.random()),
        kill_points=sometimes(0.4, 0.03 * random.random()),
        coordinator_kills=times(0.3, 3),
        driver_kills=times(0.3, 3),
        driver_pauses=times(0.2, 2),
        coordinator_pauses=times(0.15, 2),
        takeovers=times(0.2, 2),
        cuts=times(0.2, 2),
        kafka_cuts=times(0.2, 2),
        moves=times(0.25, 4),
        broker_failures=times(0.15, 2),
        hijacks=hijacks,
        clean_ups=times(0.2, 2) if undisturbed else 0,
        stops=times(0.15, 2),
        cancels=times(0.1, 1),
        wishes=times(0.2, 3),
        skew=sometimes(0.1, 1_200.0),
        robberies=sometimes(0.15, 0.2) if kafka == LinkFaults() else 0.0,
        on_lost=random.choice((OnLost.REPLAY, OnLost.REPLAY, OnLost.REPLAY, OnLost.SKIP, OnLost.HALT)),
        lease=1.0 if (hasty := random.random() < 0.3) else 3.0,
        orphan_grace=1.0 if hasty else random.choice((3.0, 5.0, 30.0)),
        absence=sometimes(0.2, 12.0),
        gone=random.random() < 0.1,
        torn=sometimes(0.15, 0.2),
        worn=sometimes(0.15, 0.5),
        standby=limit % 2 == 0,
        task_cuts=limit % 3,
        late_store=sometimes(0.4, 0.04 * random.random()) if limit % 2 == 0 else 0.0,
        lost_locks=times(0.2, 2) if limit % 2 == 0 else 0,
    )
    # The claim rules out an older copy of the store, until the claim expires or a tool deletes it.
    claimed = not drawn.clean_ups and drawn.receipts_kept_minutes > 1
    promotions = int(claimed and drawn.standby and totals[0] % 3 == 0)
    second: Literal["", "beside", "apart", "table"] = ""
    if sum(totals) % 4 == 3:
        second = "beside" if totals[0] % 2 else "apart"
    elif (totals[0] + 3 * totals[1]) % 6 == 1:
        second = "table"
    skipped = 0.3 if totals[1] % 4 == 1 else 0.0
    return replace(drawn, promotions=promotions, skipped_markers=skipped, second_sink=second)


def alone(**faults: Any) -> dict[str, Any]:
    """The fault profile of a busy job without faults except the given ones, so that only these can cause a finding."""
    fields: dict[str, Any] = {
        "totals": (24, 24),
        "limit": 2,
        "fault_time": 6.0,
        "interval": 0.1,
        "timeout": 20.0,
        "tolerable": 50,
        "transaction_timeout": 120.0,
        "receipts_kept_minutes": 7 * 24 * 60,
        "rpc": LinkFaults(),
        "kafka": LinkFaults(),
        "table": None,
        "tasks": TaskFaults(),
        "store_failures": 0.0,
        "kill_points": 0.0,
        "skew": 0.0,
        "lease": 3.0,
        "orphan_grace": 30.0,
        "absence": 0.0,
        "gone": False,
        "torn": 0.0,
        "standby": False,
        "late_store": 0.0,
        "skipped_markers": 0.0,
        "second_sink": "",
    }
    counts = "coordinator_kills driver_kills driver_pauses coordinator_pauses takeovers cuts kafka_cuts task_cuts moves"
    fields |= dict.fromkeys(
        (*counts.split(), "broker_failures", "hijacks", "clean_ups", "stops", "promotions", "lost_locks"), 0
    )
    return fields | faults
