"""What is varied, one thing at a time, and what stays as it is. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from benchmarks.ours.system import Ours
from benchmarks.sizes import Placed, Sizes
from benchmarks.workloads import Workload

__all__ = ["Axis", "Point", "axes"]

_COPY = Ours(name="ours", path="fused")
_RATES = ("records_per_s", "cpu_s_per_million", "broker_cpu_s_per_million", "peak_pss_mb", "aborted_checkpoints")
_CYCLES = ("cycle_ms", "ms_per_slot", "cycle_ms_worst", "job_ms", "peak_pss_mb", "aborted_checkpoints")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size of what is varied."""

    at: int
    sizes: Sizes
    system: Ours = _COPY


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One thing that is varied."""

    name: str
    title: str
    unit: str
    """What the points are numbers of."""
    points: Sequence[Point]
    workload: Workload = Workload.COPY
    figures: Sequence[str] = field(default=_RATES)
    """What the table and the picture show; the result has everything."""

    def named(self, point: Point) -> str:
        return f"{point.at:,} {self.unit if point.at > 1 else self.unit.removesuffix('s')}"


def axes(*, quick: bool) -> tuple[Axis, ...]:
    """All of them, in full or only to see whether they work."""
    base = Sizes(records=2_000, interval_ms=200) if quick else Sizes(records=4_000_000)
    partitions = (4, 16) if quick else (4, 64, 256)
    executors = (1, 2) if quick else (1, 2, 4)
    large = ((100, 2_000), (100_000, 200)) if quick else ((100, 4_000_000), (1_000, 1_000_000), (100_000, 20_000))
    slots = (1, 8) if quick else (1, 4, 16, 64, 256)
    checkpoints = 8 if quick else 40
    return (
        Axis(
            name="partitions",
            title="copy by partitions of input and output; what is read from one goes to the same one",
            unit="partitions",
            points=[Point(at=at, sizes=replace(base, partitions=at, placed=Placed.BY_KEY)) for at in partitions],
        ),
        Axis(
            name="all-to-all",
            title="copy by partitions of input and output; what is read from one goes to all",
            unit="partitions",
            points=[Point(at=at, sizes=replace(base, partitions=at)) for at in partitions],
        ),
        Axis(
            name="executors",
            title=f"copy of {base.partitions} partitions by executors of one core each, processes of their own",
            unit="executors",
            points=[
                Point(
                    at=at,
                    sizes=replace(base, threads=at),
                    system=Ours(name="ours-executors", path="fused", executors=True),
                )
                for at in executors
            ],
        ),
        Axis(
            name="record-size",
            title="copy by bytes of a record",
            unit="bytes",
            points=[Point(at=at, sizes=replace(base, record_bytes=at, records=records)) for at, records in large],
            figures=("records_per_s", "mb_per_s", "cpu_s_per_million", "cpu_s_per_gb", "peak_pss_mb"),
        ),
        Axis(
            name="slots",
            title="a checkpoint by its slots of one record each, back to back",
            unit="slots",
            workload=Workload.CYCLE,
            points=[
                Point(at=at, sizes=replace(base, partitions=at, small_records=at, small_checkpoints=checkpoints))
                for at in slots
            ],
            figures=_CYCLES,
        ),
    )
