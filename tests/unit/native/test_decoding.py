"""The records of batches as Arrow columns, against a description of the format in plain Python."""

import gc
from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.support.record_batches import ABORT, CODECS, COMMIT, Batch, Record, marker
from tests.unit.native.strategies import logs

pytest.importorskip("onceward_native", reason="onceward-native is not built", exc_type=ImportError)

from onceward_native import Decoder, columns_schema
from tests.unit.native.reading import COLUMNS, FOREVER, encoded, expected, memory, rows


def opened(data: bytes, start: int = 0, end: int = FOREVER, aborted: Sequence[tuple[int, int]] = ()) -> Decoder:
    decoder = Decoder(COLUMNS, check_crc=True)
    decoder.open(data, start=start, end=end, aborted=aborted)
    return decoder


def values(decoder: Decoder) -> list[bytes]:
    return [row[2] for row in rows(decoder)]


def plain(*offsets: int, **fields: Any) -> Batch:
    return Batch(records=[Record(offset, 0, None, b"%d" % offset) for offset in offsets], **fields)


@settings(max_examples=examples(300))
@given(logs(), st.integers(0, 5000))
def test_every_field_of_every_record_is_read(log: Sequence[Batch], most_bytes: int) -> None:
    decoder = opened(data := encoded(log))
    assert rows(decoder, most_bytes) == expected(log)
    assert decoder.next_offset == log[-1].last_offset + 1
    assert decoder.leader_epoch == log[-1].epoch
    assert decoder.bytes_used == len(data)


@given(logs(), st.data())
def test_a_range_may_begin_and_end_inside_a_batch(log: Sequence[Batch], data: st.DataObject) -> None:
    first, after = log[0].base_offset, log[-1].last_offset + 1
    start = data.draw(st.integers(first, after))
    end = data.draw(st.integers(start, after))
    decoder = opened(encoded(log), start, end)
    assert rows(decoder, 1) == expected(log, start, end)
    reached = [batch for batch in log if batch.base_offset < end] or log
    assert start <= decoder.next_offset <= end
    if start < end and reached[-1].last_offset + 1 >= end:
        assert decoder.next_offset == end


@given(logs(), st.data())
def test_an_answer_that_ends_inside_a_batch_leaves_that_batch_for_the_next(
    log: Sequence[Batch], data: st.DataObject
) -> None:
    sizes = [len(batch.encoded()) for batch in log]
    cut = data.draw(st.integers(0, sum(sizes)))
    whole = [batch for n, batch in enumerate(log) if sum(sizes[: n + 1]) <= cut]
    decoder = opened(encoded(log)[:cut])
    assert rows(decoder) == expected(whole)
    assert decoder.bytes_used == sum(sizes[: len(whole)])
    assert decoder.next_offset == (whole[-1].last_offset + 1 if whole else 0)


@given(logs(), st.lists(st.sampled_from(COLUMNS), unique=True))
def test_only_the_wanted_columns_are_made_in_their_order(log: Sequence[Batch], columns: list[Any]) -> None:
    decoder = Decoder(columns)
    decoder.open(encoded(log), start=0, end=FOREVER)
    all_rows = expected(log)
    chunk = decoder.read(1 << 30)
    if chunk is None:
        assert all_rows == []
        return
    chunk.records.validate(full=True)
    assert chunk.records.num_rows == len(all_rows)
    assert chunk.records.schema == columns_schema(columns)
    for name in columns:
        found = chunk.records.column(name).to_pylist()
        if name == "headers":
            found = [each and [(pair["key"], pair["value"]) for pair in each] for each in found]
        assert found == [row[COLUMNS.index(name)] for row in all_rows]


def test_columns_that_do_not_exist_or_are_named_twice_are_refused() -> None:
    for wrong in (["topic"], ["key", "value", "key"]):
        with pytest.raises(ValueError, match="columns must be different ones of key, value"):
            Decoder(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", CODECS)
def test_large_batches_of_every_codec_are_read(codec: str) -> None:
    def record(n: int) -> Record:
        return Record(n, n, b"k%d" % n, b"%d" % n * (n % 300), [("h", b"%d" % n)])

    log = [Batch(records=[*map(record, range(at, at + 5000))], codec=codec) for at in (0, 5000)]
    assert rows(opened(encoded(log))) == expected(log)


def test_a_chunk_ends_with_the_batch_that_reaches_its_limit() -> None:
    decoder = Decoder(["value"])
    decoder.open(encoded([plain(n, n + 1) for n in range(0, 8, 2)]), start=0, end=FOREVER)
    sizes = []
    while (chunk := decoder.read(40)) is not None:
        sizes.append(chunk.records.num_rows)
    assert sizes == [4, 4]  # 17 bytes for each record: 34 after the first batch, 68 after the second


def test_control_batches_are_left_out_and_passed_by() -> None:
    log = [plain(0, 1, producer=5, transactional=True), marker(2, 5, COMMIT, epoch=3)]
    decoder = opened(encoded(log))
    assert values(decoder) == [b"0", b"1"]
    assert (decoder.next_offset, decoder.leader_epoch) == (3, 3)


def test_aborted_transactions_are_left_out_between_their_first_offset_and_their_marker() -> None:
    def batch(offset: int, producer: int) -> Batch:
        return plain(offset, producer=producer, transactional=True, codec="lz4")

    log = [
        batch(0, 1), marker(1, 1, COMMIT),  # committed before
        batch(2, 1), batch(3, 2), plain(4), batch(5, 1),  # 1 is aborted; 2 is committed beside it
        marker(6, 1, ABORT), batch(7, 1), batch(8, 2),  # the next of 1 is committed
        marker(9, 2, COMMIT), marker(10, 1, COMMIT),
        batch(11, 3), marker(12, 3, ABORT), batch(13, 3), marker(14, 3, ABORT),  # 3 is aborted twice
        plain(15, producer=3),  # idempotent, not in a transaction
    ]  # fmt: skip
    aborted = [(3, 13), (1, 2), (3, 11)]
    assert values(opened(encoded(log), aborted=aborted)) == [b"0", b"3", b"4", b"7", b"8", b"15"]
    uncommitted = [b"0", b"2", b"3", b"4", b"5", b"7", b"8", b"11", b"13", b"15"]
    assert values(opened(encoded(log))) == uncommitted
    # a range that begins after the marker, in an answer that begins before it
    assert values(opened(encoded(log), start=7, aborted=aborted)) == [b"7", b"8", b"15"]


def test_an_aborted_transaction_that_began_before_the_answer_is_left_out() -> None:
    log = [plain(100, 101, producer=1, transactional=True), marker(102, 1, ABORT), plain(103)]
    assert values(opened(encoded(log), start=100, aborted=[(1, 7)])) == [b"103"]


def test_only_transactional_batches_of_a_producer_are_aborted() -> None:
    log = [plain(0, producer=1, transactional=True), plain(1, producer=1), marker(2, 1, ABORT)]
    assert values(opened(encoded(log), aborted=[(1, 0)])) == [b"1"]


def test_a_commit_marker_does_not_end_an_aborted_transaction() -> None:
    """Java's reader ends it with an abort marker only."""
    log = [marker(5, 1, COMMIT), plain(6, producer=1, transactional=True), marker(7, 1, ABORT), plain(8)]
    assert values(opened(encoded(log), start=5, aborted=[(1, 5)])) == [b"8"]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["data", "plain", "commit", "abort"])), max_size=40))
def test_any_mix_of_transactions_shows_what_was_committed(steps: list[tuple[int, str]]) -> None:
    log: list[Batch] = []
    open_since: dict[int, int] = {}
    open_values: dict[int, list[int]] = {}
    visible: list[int] = []
    aborted: list[tuple[int, int]] = []
    for offset, (producer, step) in enumerate([*steps, *((producer, "abort") for producer in range(5))]):
        match step:
            case "data":
                log.append(plain(offset, producer=producer, transactional=True))
                open_since.setdefault(producer, offset)
                open_values.setdefault(producer, []).append(offset)
            case "plain":
                log.append(plain(offset))
                visible.append(offset)
            case _:
                log.append(marker(offset, producer, ABORT if step == "abort" else COMMIT))
                began, written = open_since.pop(producer, None), open_values.pop(producer, [])
                if step == "commit":
                    visible += written
                elif began is not None:
                    aborted.append((producer, began))
    assert values(opened(encoded(log), aborted=aborted)) == [b"%d" % offset for offset in sorted(visible)]


def test_a_batch_that_compaction_emptied_moves_the_position() -> None:
    decoder = opened(
        encoded([Batch(records=[], base=0, last=9, codec="none"), plain(10), Batch(records=[], base=11, last=20)])
    )
    assert values(decoder) == [b"10"]
    assert decoder.next_offset == 21


def test_an_emptied_batch_that_says_it_is_compressed_is_read() -> None:
    decoder = opened(encoded([Batch(records=[], base=0, last=9, codec="zstd")]))
    assert decoder.read() is None
    assert decoder.next_offset == 10


def test_nothing_to_read_is_no_chunk() -> None:
    for data, start, end in ((b"", 0, FOREVER), (encoded([plain(0)]), 0, 0), (encoded([plain(0)]), 1, FOREVER)):
        decoder = opened(data, start, end)
        assert decoder.read() is None
        assert decoder.next_offset == start


def test_columns_live_without_their_decoder_and_the_answer() -> None:
    data = bytearray(encoded([plain(*range(100)), plain(*range(100, 300), codec="zstd")]))
    decoder = opened(data)  # type: ignore[arg-type]
    column = decoder.read().records.column("value")  # type: ignore[union-attr]
    decoder.open(b"", start=0, end=0)
    data[:] = bytes(len(data))
    del decoder
    gc.collect()
    assert column.slice(50).to_pylist() == [b"%d" % n for n in range(50, 300)]


def test_the_memory_of_chunks_is_freed() -> None:
    data = encoded([Batch(records=[Record(n, 0, None, bytes(100_000)) for n in range(at, at + 10)]) for at in (0, 10)])
    decoder = Decoder(["value"])

    def read() -> int:
        for _ in range(100):
            decoder.open(data, start=0, end=FOREVER)
            assert decoder.read(1 << 30).records.num_rows == 20  # type: ignore[union-attr]
        return memory()

    before = read()
    assert read() < before + 50_000_000  # 200 MB if they stayed


@given(st.binary(max_size=8))
def test_names_of_headers_are_utf8_as_python_sees_it(name: bytes) -> None:
    from onceward_native import HeaderNameNotUtf8Error

    batch = Batch(records=[Record(0, 0, None, None, [("#" * len(name), None)])])
    data = batch.encoded().replace(b"#" * len(name), name) if name else batch.encoded()
    decoder = Decoder(["headers"])
    decoder.open(data, start=0, end=1)
    try:
        text = name.decode()
    except UnicodeDecodeError:
        with pytest.raises(HeaderNameNotUtf8Error, match=r"batch at offset 0 .* record 0.* not UTF-8"):
            decoder.read()
        without = Decoder(["value"])
        without.open(data, start=0, end=1)
        assert without.read() is not None
    else:
        chunk = decoder.read()
        assert chunk is not None
        assert chunk.records.column("headers").to_pylist() == [[{"key": text, "value": None}]]


def test_slices_and_computations_of_arrow_work_on_the_columns() -> None:
    decoder = opened(encoded([Batch(records=[Record(n, n, b"%d" % n, None) for n in range(50)])]))
    chunk = decoder.read()
    assert chunk is not None
    assert pc.sum(chunk.records.column("offset")).as_py() == sum(range(50))
    assert chunk.records.filter(pc.equal(chunk.records.column("key"), b"7")).num_rows == 1
    assert chunk.records.column("value").null_count == 50
