"""The driver's part of the Kafka source."""

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import timedelta
from typing import Self

from onceward.common.errors import ConfigurationError, OncewardError
from onceward.common.links import Links
from onceward.common.printable import logger
from onceward.connections.admin import reach
from onceward.connections.cluster import KAFKA_TOPIC, KafkaCluster
from onceward.connectors.interfaces import (
    Assignment,
    Finding,
    FollowedSource,
    JobContext,
    Plan,
    Resource,
    SplitFollower,
    SplitReader,
)
from onceward.connectors.tasks import ranges_of
from onceward.protocol.settings import Duration, as_duration
from onceward.protocol.values import Document, JsonObject, Participant, ParticipantName, Role
from onceward.sources.kafka.control.mirror import GroupMirror
from onceward.sources.kafka.driver import following
from onceward.sources.kafka.driver.arguments import SourceArguments
from onceward.sources.kafka.driver.checks import (
    client_findings,
    confirm_topics,
    durability_findings,
    owned_setting_findings,
    security_findings,
    topic_findings,
)
from onceward.sources.kafka.driver.offsets import Limits
from onceward.sources.kafka.driver.replays import refuse_incomplete
from onceward.sources.kafka.driver.resolution import resolve_ends, resolve_starts
from onceward.sources.kafka.driver.sizing import Ran
from onceward.sources.kafka.driver.splitting import describe_ranges, halve_ranges, join_ranges, split_ranges
from onceward.sources.kafka.driver.starts import End, Reset, Start, bound_text
from onceward.sources.kafka.driver.subscription import Subscription
from onceward.sources.kafka.epochs import refuse_differences
from onceward.sources.kafka.executor.columns import COPIED, RECORD, ddl_of
from onceward.sources.kafka.executor.offset_gone import halt_for, offset_gone_in
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from onceward.sources.kafka.positions import KafkaPositions, Partition

__all__ = ["KafkaSource"]

_log = logger("onceward.source.kafka")

_SHOWN_S = 1.0
"""Shorter throttling is not shown."""


class KafkaSource(FollowedSource):
    """Reads topics of one Kafka cluster as a ``read_committed`` reader."""

    def __init__(
        self,
        cluster: str | KafkaCluster,
        topics: Sequence[str] | str | None = None,
        *,
        pattern: str | None = None,
        start: Start = "group",
        reset: str = "earliest",
        end: End = None,
        group_id: str | None = None,
        include_headers: bool = False,
        columns: Sequence[str] | None = None,
        min_partitions: int | None = None,
        max_offsets_per_checkpoint: int | None = None,
        max_rate_per_partition: float | None = None,
        adaptive: bool = True,
        discovery_interval: Duration = "5min",
        mirror_offsets: bool = True,
        name: str = "source",
    ) -> None:
        """
        cluster: bootstrap servers, or a KafkaCluster shared with the sink.
        topics: names; or pattern: a regular expression that matches a topic's whole name.
        start: ``group`` (offsets that the group committed), ``earliest``, ``latest``, a datetime with a zone (the first
            record with that timestamp or a later one), or offsets ``{"orders": {0: 23}}``. Used only while the job has
            no positions; partitions found later start at earliest.
        reset: ``earliest``, ``latest`` or ``error``, for partitions that the group or the offsets do not name.
        end: ``latest``, a datetime (exclusive), or offsets (exclusive) of all partitions; resolved once and kept in the
            positions. The job finishes there. If it is then started again, it resolves the end again and continues;
            after a crash it continues to the previous end. None = runs until it is stopped.
        group_id: for ``start="group"`` and mirrored offsets; None = the job's name.
        include_headers: adds the column ``headers``.
        columns: the columns of DataFrames and batches, in this order, for example ``("key", "value")``; others are not
            read. None = all but ``headers``. Columns that a transform of DataFrames does not use are never read; for a
            function on batches this cannot be detected.
        min_partitions: like Spark's minPartitions: cuts the ranges of a checkpoint into at least this many, the longest
            first, each with its own task and transaction. The records of an input partition are then no longer written
            in order, and small ranges are not joined into fewer tasks.
        max_offsets_per_checkpoint: over all partitions, in proportion to their backlog; None = no such limit.
        max_rate_per_partition: offsets per second, on average; None = no such limit.
        adaptive: limits a checkpoint of a backlog so that it takes about its interval, by the times of earlier ones
            (docs/how-to/tune.md#how-much-a-checkpoint-reads). False = each reads all that the other two limits allow.
        discovery_interval: time between searches for new partitions (and topics of a pattern); text or timedelta.
        mirror_offsets: shows settled positions in the consumer group, for lag tools. Never read back.
        name: of this participant within the job.

        Raises ConfigurationError listing every invalid argument.
        """
        self._arguments = arguments = SourceArguments(
            cluster=cluster,
            topics=topics,
            pattern=pattern,
            start=start,
            reset=reset,
            end=end,
            group_id=group_id,
            include_headers=include_headers,
            columns=columns,
            min_partitions=min_partitions,
            max_offsets_per_checkpoint=max_offsets_per_checkpoint,
            max_rate_per_partition=max_rate_per_partition,
            adaptive=adaptive,
            discovery_interval=discovery_interval,
            mirror_offsets=mirror_offsets,
            name=name,
        )
        self.cluster = KafkaCluster.of(cluster)
        self.participant = Participant(name=ParticipantName(name), role=Role.SOURCE, kind="kafka")
        self._columns = arguments.read_columns
        self.schema = ddl_of(self._columns)
        self.copied_columns = tuple(column for column in COPIED if column in self._columns)
        self._limits = Limits()
        self._links = Links()
        self._interval: timedelta | None = None
        self._shares: following.Shares | None = None
        """What staying tasks may read in a checkpoint; None = no such limit, or none stays."""
        self._subscription: Subscription | None = None
        self._group = group_id or ""
        self._ends: dict[Partition, int] | None = None
        self._new_run = False
        self._mirror: GroupMirror | None = None
        self._left_out = ""
        """What the ends of this run leave out, for a line of the log; empty = nothing that is known."""

    @property
    def cluster_id(self) -> str:
        """Requested from the brokers once. Raises CheckpointFailedError if they do not answer."""
        return self._opened().cluster_id

    def with_whole_records(self) -> tuple[Self, Sequence[str]]:
        """See :class:`HasWholeRecords`."""
        besides = tuple(name for name in RECORD if name not in self._columns)
        source = copy(self)
        source._columns = (*self._columns, *besides)
        return source, besides

    def open(self, context: JobContext) -> None:
        """Open the source. It may be opened again after it was closed, and keeps no state from before."""
        self._ends = None
        self._new_run = False
        self._links = context.links
        self._shares, self._interval = None, context.checkpoint_interval
        self._limits = self._arguments.limits(
            interval=context.checkpoint_interval, checkpoint_timeout=context.checkpoint_timeout
        )
        # The client accepts only str itself as a group, no subclass.
        self._group = self._arguments.group_id or str(context.job)
        self._subscription = Subscription(
            self.cluster,
            self._arguments.names,
            self._arguments.whole_name,
            links=context.links,
            discovery_interval=as_duration(self._arguments.discovery_interval),
        )
        self._mirror = GroupMirror(self._subscription.view, self._group) if self._arguments.mirror_offsets else None

    def preflight(self) -> Sequence[Finding]:
        """Return all findings. Raises PreflightError if the cluster cannot be reached: then nothing can be checked."""
        findings = [
            *client_findings(),
            *owned_setting_findings(self.cluster),
            *security_findings(self.cluster),
        ]
        reach(self.cluster)
        subscription = self._opened()
        names = subscription.names()
        found = confirm_topics(subscription.view.visible_topics, names)
        findings += topic_findings(self.cluster, names or {str(subscription)}, found)
        findings += durability_findings(found, subscription.view)
        return findings

    def resolve(self) -> Document:
        subscription, arguments = self._opened(), self._arguments
        view = subscription.view
        found = subscription.found()
        partitions = subscription.partitions(found)
        ends = resolve_ends(view, partitions, end=arguments.end)
        self._look_at_ends(ends)
        reset = Reset(arguments.reset)
        starts = resolve_starts(view, partitions, start=arguments.start, reset=reset, group=self._group)
        return subscription.positions(found, starts, ends, bound=bound_text(arguments.end)).to_document()

    def begin_new_run(self) -> None:
        self._new_run = True

    def restore(self, positions: Document) -> None:
        stored = KafkaPositions.from_document(positions)
        self._opened().check(stored, also_done=self._new_run and self._at_its_end(stored))

    def plan(self, base: Document) -> Plan:
        plan = self._planned(self._current(KafkaPositions.from_document(base)), self._limits)
        if plan.finished and not plan.records:
            self._warn_at_the_end()
        least = self._arguments.min_partitions
        return replace(plan, splits=split_ranges(plan.splits, least), can_coalesce=least is None)

    def _planned(self, positions: KafkaPositions, limits: Limits) -> Plan:
        subscription = self._opened()
        read = {partition for partition, _ in positions if subscription.reads(partition)}
        return subscription.plan(positions, subscription.available(positions, read), read=read, limits=limits)

    def coalesce(self, splits: Sequence[JsonObject], most: int) -> tuple[JsonObject, ...]:
        return join_ranges(splits, most)

    def observe_run(self, plan: Plan, seconds: float, *, failed: bool = False, held: float = 0.0) -> None:
        """See :meth:`Source.observe_run`. What it learns outlives a generation, but not the process."""
        if not failed:
            self.observe_held(seconds, held)
        sizing = self._limits.sizing
        if sizing is None or plan.records == 0:
            return
        ranges: Counter[tuple[str, int]] = Counter()
        for split in plan.splits:
            ranges[split["topic"], split["partition"]] += split["end"] - split["start"]
        ran = Ran(
            offsets=plan.records,
            longest=max(ranges.values()),
            ranges=sum(offsets > 0 for offsets in ranges.values()),
            seconds=seconds,
            everything=plan.lag == 0,
            failed=failed,
            held=held,
        )
        self._limits = replace(self._limits, sizing=sizing.observe(ran))

    def observe_held(self, seconds: float, held: float) -> None:
        """See :meth:`FollowedSource.observe_held`: show a quota that holds reading back, while it does."""
        link = f"a quota of cluster {self.cluster.name!r}"
        if held < _SHOWN_S:
            self._links.worked(link)
            return
        why = (
            f"the brokers held reading back for {min(held, seconds):.0f} of the last {seconds:.0f} s, as "
            "consumer_byte_rate or request_percentage of this user or client id says"
        )
        self._links.failed(link, why, waiting="reading", held=True)

    def snapshot(self, plan: Plan) -> Document:
        """Return the positions after ``plan`` was read. Raises HaltedError if a topic was recreated meanwhile: equal
        ids now prove that the records came from the topic of the positions."""
        if plan.records:
            positions = KafkaPositions.from_document(plan.positions)
            self._opened().refuse_other_topics(
                positions,
                {each["topic"] for split in plan.splits for each in ranges_of(split) if each["end"] > each["start"]},
            )
        return plan.positions

    def read(self) -> SplitReader:
        return self._reader()

    def _reader(self) -> KafkaSplitReader:
        return KafkaSplitReader(cluster=self.cluster, group_id=self._group, names=self._columns)

    def diagnose(self, error: BaseException) -> OncewardError | None:
        """Return the halt behind a failed Spark job if a reader found its offset gone; None for other failures."""
        gone = offset_gone_in(str(error))
        return halt_for(gone) if gone is not None else None

    def halves(self, splits: Sequence[JsonObject]) -> tuple[Sequence[JsonObject], Sequence[JsonObject]] | None:
        return halve_ranges(splits)

    def describe(self, splits: Sequence[JsonObject]) -> str:
        return describe_ranges(splits)

    def check_replay(self, splits: Sequence[JsonObject], positions: Document) -> None:
        subscription = self._opened()
        refuse_incomplete(
            subscription.view,
            subscription.leaders,
            subscription.cluster_id,
            KafkaPositions.from_document(positions),
            [each for split in splits for each in ranges_of(split)],
        )

    def follow(self) -> SplitFollower:
        return following.follower(self._arguments, self._reader())

    def assign(self, base: Document, most: int) -> Assignment:
        """See :meth:`Source.assign`. Raises HaltedError if the log is not the one that was read up to ``base``."""
        positions = self._current(KafkaPositions.from_document(base))
        waiting = self._planned(positions, Limits())  # looks at every log
        read = {partition for partition, _ in positions if self._opened().reads(partition)}
        assignment = following.assign(positions, read, most)
        if assignment.finished:
            self._warn_at_the_end()
        limit = self._arguments.max_offsets_per_checkpoint
        if limit is None:
            return assignment
        lags = {Partition(s["topic"], s["partition"]): s["end"] - s["start"] for s in waiting.splits}
        self._shares = following.Shares(limit, assignment, lags, most=self._arguments.most_per_interval(self._interval))
        pairs = zip(assignment.splits, self._shares.next(), strict=True)
        return replace(assignment, splits=tuple({**split, "allowed": allowed} for split, allowed in pairs))

    def allowances(self) -> Sequence[Sequence[int]]:
        return self._shares.next() if self._shares is not None else ()

    def reached(self, assigned: Document, reports: Sequence[JsonObject]) -> Plan:
        """See :meth:`Source.reached`. Raises HaltedError if a log was replaced since ``assigned``."""
        positions = KafkaPositions.from_document(assigned)
        subscription = self._opened()
        read = {partition for partition, _ in positions if subscription.reads(partition)}
        refuse_differences(subscription.leaders.differences(following.suspects(positions, reports)))
        if self._shares is not None:
            self._shares.reached(reports)
        return following.reached(positions, read, reports)

    def outgrown(self, assigned: Document) -> bool:
        positions = KafkaPositions.from_document(assigned)
        return self._current(positions) != positions

    def mirror(self, positions: Document) -> None:
        if self._mirror is not None:
            self._mirror.show({p: cursor.next for p, cursor in KafkaPositions.from_document(positions)})

    def reads(self, resource: Resource) -> bool:
        here = (resource.kind, resource.cluster) == (KAFKA_TOPIC, self.cluster_id)
        return here and self._opened().wants(resource.name)

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
        self._subscription = self._mirror = None

    def _opened(self) -> Subscription:
        if self._subscription is None:
            raise ConfigurationError("This Kafka source is not open. Nothing was asked. Call open() first.")
        return self._subscription

    def _current(self, base: KafkaPositions) -> KafkaPositions:
        """Return ``base`` plus partitions found later, with the ends that the program's ``end=`` now requires."""
        bound = bound_text(self._arguments.end)
        # The end= differs from the one that the stored ends were resolved from, or a new run begins.
        resolve = bound != base.bound or (self._new_run and self._at_its_end(base))
        if bound is not None and not resolve:
            return base
        subscription = self._opened()
        if bound is None or self._ends is None:
            subscription.look_for_partitions(base)
        positions = subscription.with_found(base)
        if not resolve:
            return positions
        if self._ends is None:  # once per run: a repeated checkpoint keeps its ends
            read = [p for p, _ in positions if subscription.reads(p)]
            self._ends = resolve_ends(subscription.view, read, end=self._arguments.end) or {}
            self._look_at_ends(self._ends)
        ends = self._ends
        return positions.moved({p: replace(cursor, end=ends.get(p)) for p, cursor in positions}, bound=bound)

    def _look_at_ends(self, ends: Mapping[Partition, int] | None) -> None:
        """Warn of records that are left out by ``ends`` which the program did not name."""
        if ends and not isinstance(self._arguments.end, Mapping):
            self._left_out = self._opened().warn_of_left_out(ends)

    def _warn_at_the_end(self) -> None:
        """Repeat the warning of the start, once."""
        if self._left_out:
            _log.warning("%s", self._left_out)
            self._left_out = ""

    def _at_its_end(self, positions: KafkaPositions) -> bool:
        reads = self._opened().reads
        return all(cursor.done for partition, cursor in positions if reads(partition))
