"""Find a moment to judge a job: every completed checkpoint is settled, even if the job is running.

Also find what prevents a judgement: input that is deleted, compacted or recreated, or an unknown beginning.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onceward.operate.verify.cluster import ClusterView
from onceward.operate.verify.history import CheckpointReport, Lane, Part, PartitionEnd
from onceward.operate.verify.streams import Ranges, completed

__all__ = ["Job", "Look", "Moment", "deleted", "steady_moment", "unusable_input"]

_POLL_S = 0.1
_QUERY = (
    "the job is a Structured Streaming query, which cannot be verified: only Spark knows the offsets that it has read. "
    "Nothing is known to be wrong"
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """How to ask about the job. Calls raise OncewardError when the coordinator does not answer."""

    name: str
    reports: Callable[[], Sequence[CheckpointReport]]
    """All checkpoints that are still stored, in their present state."""
    running: Callable[[], bool]
    """Whether the job has a driver."""
    origin: Callable[[int], tuple[str, Mapping[str, str]]]
    """Checkpoint -> the ids of the cluster, and of each topic, that its positions refer to."""


class Look(NamedTuple):
    """The output at one moment."""

    ends: Sequence[PartitionEnd] = ()
    open: Mapping[str, str] = {}
    """As :attr:`History.open`."""
    letters: bool = True
    """Nothing is open in the topic of dead letters."""


@dataclass(kw_only=True)
class Moment:
    """The state at one moment."""

    reports: Sequence[CheckpointReport]
    ends: Sequence[PartitionEnd]
    """Ends of the output: below ``stable`` is everything that completed checkpoints wrote, and nothing else."""
    open: Mapping[str, str]
    running: bool
    gaps: dict[Part, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def newest(self) -> int:
        """The last completed checkpoint; 0 for none."""
        return max(completed(self.reports), default=0)

    @property
    def unsettled(self) -> list[int]:
        return [one.checkpoint for one in self.reports if one.state == "completed"]


def steady_moment(job: Job, look: Callable[[], Look], patience_s: float) -> Moment:
    """Poll until every completed checkpoint is settled and nothing is open, for at most ``patience_s``. The last
    ``look`` at the output is the one that counts.

    Open or unsettled work of a running job is no breach; if the job does not come to rest, the answer is unknown.
    """
    limit = time.monotonic() + patience_s
    while True:
        reports = job.reports()
        ends, begun, readable = look()
        before = Moment(reports=reports, ends=ends, open=begun, running=True)
        after = job.reports()
        # a checkpoint completed between the two looks may be partly visible
        still = before.newest == max(completed(after), default=0) and not before.unsettled
        at_rest = still and not before.open and all(one.high == one.stable for one in before.ends)
        if (at_rest and readable) or time.monotonic() > limit:
            break
        time.sleep(_POLL_S)
    moment = Moment(reports=before.reports, ends=before.ends, open=before.open, running=job.running())
    if not readable:
        moment.gaps[Part.REST].append("open transactions hold back the topic of dead letters")
    if moment.running:
        if not still:
            moment.gaps[Part.COORDINATOR].append("the job runs, and at no moment was everything completed settled too")
        if not at_rest:
            moment.gaps[Part.END].append(f"the job runs, and has {len(before.open)} transactions open")
            moment.open, moment.ends = {}, [one._replace(high=one.stable) for one in before.ends]
        moment.reports = [one for one in moment.reports if one.state not in ("triggered", "completed")]
    moment.reports = [one._replace(last=True) for one in moment.reports]
    return moment


def unusable_input(
    job: Job, source: ClusterView, inputs: Sequence[str], covered: Ranges, moment: Moment, *, from_earliest: bool
) -> None:
    """Record in ``moment`` what prevents a comparison of the input."""
    fed = moment.gaps[Part.FED]
    if not moment.newest:
        moment.gaps[Part.COORDINATOR].append("no checkpoint is completed")
        return
    cluster, topics = job.origin(moment.newest)
    if not cluster:
        fed.append(_QUERY)
        moment.reports = [one._replace(ends={}) for one in moment.reports]  # nothing else is missing
        return
    if covered.cut and not from_earliest:
        fed.append(
            f"the job's start is no longer known, because the checkpoints before {covered.cut} are removed; pass "
            "--from-earliest if it began at offset 0"
        )
    if covered.moved:
        fed.append(
            f"what the job read twice or not at all is no longer known, because checkpoints before the restore "
            f"{covered.moved} are removed; a higher num_retained keeps them"
        )
    now_cluster, now_topics = source.identity(inputs)
    if cluster != now_cluster:
        fed.append(f"the job reads from cluster {cluster}, the one that was named is {now_cluster}")
    elif topics.keys() != set(inputs):
        fed.append(f"the job reads {', '.join(sorted(topics))}, named were {', '.join(sorted(inputs))}")
    else:
        fed.extend(f"topic {name} was recreated" for name, known in topics.items() if now_topics[name] != known)
        fed.extend(f"topic {name} may be compacted" for name in source.compacted(inputs))
        fed.extend(deleted(source.beginnings(inputs), covered))


def deleted(beginnings: Mapping[Lane, int], covered: Ranges) -> list[str]:
    """Describe the input that completed checkpoints have read and the brokers have deleted."""
    starts = {
        lane: min(one.start for one in each if one.end > one.start)
        for lane, each in sorted(covered.lanes.items())
        if any(one.end > one.start for one in each)
    }
    return [
        f"{lane} is deleted below offset {beginnings.get(lane, 0)}, the job has read from offset {start} on"
        for lane, start in starts.items()
        if beginnings.get(lane, 0) > start
    ]
