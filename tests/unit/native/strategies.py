"""Records and logs for hypothesis."""

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.support.record_batches import CODECS, Batch, Record

__all__ = ["HEADERS", "OPTIONAL_BYTES", "TIMESTAMPS", "batches", "logs"]

OPTIONAL_BYTES = st.none() | st.binary(max_size=80) | st.builds(lambda size: b"x" * size, st.integers(0, 3000))
HEADERS = st.lists(st.tuples(st.text(max_size=10), OPTIONAL_BYTES), max_size=3)
TIMESTAMPS = (
    st.sampled_from([-1, 0, 1]) | st.integers(1_700_000_000_000, 1_700_000_100_000) | st.integers(-(2**63), 2**63 - 1)
)


@st.composite
def batches(draw: st.DrawFn, base: int = 0) -> Batch:
    """A batch whose records have offsets from ``base`` on, with gaps also at both ends."""
    gaps = draw(st.lists(st.sampled_from([0, 0, 0, 1, 5]), max_size=12))
    offset, records = base - 1, []
    for gap in gaps:
        offset += 1 + gap
        records.append(Record(offset, draw(TIMESTAMPS), draw(OPTIONAL_BYTES), draw(OPTIONAL_BYTES), draw(HEADERS)))
    codec = draw(st.sampled_from(CODECS))
    return Batch(
        records=records,
        base=base,
        last=max(offset, base) + draw(st.sampled_from([0, 0, 3])),
        codec=codec,
        xerial=codec == "snappy" and draw(st.booleans()),
        epoch=draw(st.integers(-1, 5)),
        append_time=draw(st.none() | TIMESTAMPS),
        base_timestamp=draw(st.none() | TIMESTAMPS),
    )


@st.composite
def logs(draw: st.DrawFn) -> Sequence[Batch]:
    """Consecutive batches, with gaps between some."""
    found: list[Batch] = []
    offset = draw(st.sampled_from([0, 7, 2**40]))
    for _ in range(draw(st.integers(1, 4))):
        found.append(draw(batches(offset)))
        offset = found[-1].last_offset + 1 + draw(st.sampled_from([0, 0, 9]))
    return found
