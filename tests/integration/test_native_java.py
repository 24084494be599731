"""Batches that Kafka's own classes write, read by the codec, and the other way round."""

import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from onceward.dev.java import find_java
from onceward.dev.kafka.jars import broker_jars
from onceward.dev.kafka.versions import broker_version

pytest.importorskip("onceward_native", reason="onceward-native is not built", exc_type=ImportError)

from onceward_native import Batch, Column, Decoder, Encoder, columns_schema, compressions

PROGRAM = Path(__file__).with_name("RecordBatches.java")
PARTITIONS = 5
COLUMNS: tuple[Column, ...] = ("offset", "key", "value", "timestamp", "timestamp_type", "headers")
BATCHES = 1500
Row = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A batch as Java lists it."""

    base: int
    last: int
    count: int
    epoch: int
    producer: int
    producer_epoch: int
    sequence: int
    transactional: bool
    control: bool
    codec: str
    horizon: bool
    rows: list[Row]
    partitions: list[int]
    """Of the keys, -1 for none."""


@dataclass(frozen=True)
class Java:
    written: bytes
    listed: Sequence[Listed]
    ours: Sequence[Batch]
    ours_rows: Sequence[Sequence[Row]]
    """As they were given to the encoder."""
    ours_listed: Sequence[Listed]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Java:
    """Let Java write its batches and read ours, in one process."""
    if shutil.which("javac") is None and shutil.which("javac", path=str(Path(find_java()).parent)) is None:
        pytest.skip("there is no javac; install a Java development kit")
    if not broker_version().startswith("4.3"):
        pytest.skip("the classes have these names since Kafka 4.3")
    directory = tmp_path_factory.mktemp("java")
    ours, ours_rows = encoded()
    (directory / "ours.batches").write_bytes(b"".join(bytes(batch.data) for batch in ours))
    seed = random.randrange(2**31)
    command = [find_java(), "-cp", f"{broker_jars()}/*", str(PROGRAM), str(directory), str(seed), str(BATCHES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(f"Java's seed is {seed}")
    return Java(
        (directory / "java.batches").read_bytes(),
        [*listed(directory / "java.rows")],
        ours,
        ours_rows,
        [*listed(directory / "ours.rows")],
    )


def listed(file: Path) -> Iterator[Listed]:
    def field(text: str) -> bytes | None:
        return None if text == "null" else bytes.fromhex(text[1:])

    def header(text: str) -> tuple[str, bytes | None]:
        name, _, value = text.partition(":")
        return (field(name) or b"").decode(), field(value)

    batch: Listed | None = None
    for line in file.read_text().splitlines():
        match line.split(" "):
            case ["batch", *numbers, transactional, control, codec, horizon]:
                if batch is not None:
                    yield batch
                names = ("base", "last", "count", "epoch", "producer", "producer_epoch", "sequence")
                batch = Listed(
                    **dict(zip(names, map(int, numbers), strict=True)),
                    transactional=transactional == "true",
                    control=control == "true",
                    codec=codec,
                    horizon=horizon == "true",
                    rows=[],
                    partitions=[],
                )
            case [offset, key, value, timestamp, kind, headers, partition]:
                assert batch is not None
                pairs = [header(each) for each in headers[1:-1].split(",") if each] or None
                batch.rows.append((int(offset), field(key), field(value), int(timestamp), int(kind), pairs))
                batch.partitions.append(int(partition))
    if batch is not None:
        yield batch


def rows(data: Any) -> list[Row]:
    decoder = Decoder(COLUMNS, check_crc=True)
    decoder.open(data, start=0, end=2**62)
    found: list[Row] = []
    while (chunk := decoder.read()) is not None:
        *columns, headers = (column.to_pylist() for column in chunk.records.columns)
        found += zip(*columns, [each and [(h["key"], h["value"]) for h in each] for each in headers], strict=True)
    assert decoder.bytes_used == pa.py_buffer(data).size
    return found


def encoded() -> tuple[list[Batch], list[list[Row]]]:
    """Batches of every codec, and the rows of each as they are read."""
    chance = random.Random(1)

    def field() -> bytes | None:
        made = [chance.randbytes(chance.randrange(40)), b"a" * chance.randrange(2000), b"", None]
        return chance.choices(made, [5, 3, 1, 1])[0]

    batches: list[Batch] = []
    expected: list[list[Row]] = []
    for compression in compressions():
        for most in (70_000, 900_000):
            some = [
                {
                    "key": field(),
                    "value": field(),
                    "timestamp": chance.choice([-1, 0, 1_700_000_000_000 + chance.randrange(10_000)]),
                    "headers": [(f"é{n}", field()) for n in range(chance.randrange(4))] or None,
                }
                for _ in range(2000)
            ]
            types = {"timestamp": pa.int64(), "headers": columns_schema(["headers"])[0].type}
            columns = {name: pa.array([r[name] for r in some], types.get(name, pa.binary())) for name in some[0]}
            encoder = Encoder(PARTITIONS, most_bytes=most, compression=compression)
            encoder.begin(chance.randrange(100), 7)
            made = encoder.add(pa.record_batch(columns), keyless=3) + encoder.take()
            batches += made
            expected += [rows(batch.data) for batch in made]
            read = [row[1:] for batch in made for row in rows(batch.data)]
            given = [(r["key"], r["value"], r["timestamp"], 0, r["headers"]) for r in some]
            assert Counter(map(repr, read)) == Counter(map(repr, given))
    return batches, expected


def test_what_java_writes_and_compacts_is_read(java: Java) -> None:
    shown = [row for batch in java.listed if not batch.control for row in batch.rows]
    assert rows(java.written) == shown
    # what the comparison is about is there
    assert {batch.codec for batch in java.listed} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert any(batch.control for batch in java.listed)
    assert any(batch.horizon for batch in java.listed)
    assert any(not batch.count and not batch.control for batch in java.listed), "compacted to nothing"
    assert any(0 < batch.count <= batch.last - batch.base for batch in java.listed), "with gaps"
    assert {row[4] for row in shown} == {0, 1}
    assert {-1, 0} <= {row[3] for row in shown}


def test_positions_and_epochs_are_javas(java: Java) -> None:
    decoder = Decoder(["offset"])
    decoder.open(java.written, start=0, end=2**62)
    left = iter(java.listed)
    while (chunk := decoder.read(1)) is not None:
        last = chunk.records.column("offset")[-1].as_py()
        batch = next(each for each in left if each.base <= last <= each.last)
        assert (chunk.next_offset, chunk.leader_epoch) == (batch.last + 1, batch.epoch)
    assert (decoder.next_offset, decoder.leader_epoch) == (java.listed[-1].last + 1, java.listed[-1].epoch)


def test_what_is_written_java_reads(java: Java) -> None:
    assert len(java.ours) == len(java.ours_listed) > 50
    for batch, expected, found in zip(java.ours, java.ours_rows, java.ours_listed, strict=True):
        assert found.rows == expected
        assert (found.count, found.sequence) == (batch.records, batch.base_sequence)
        assert (found.base, found.last) == (0, batch.records - 1)
        assert (found.transactional, found.control, found.producer_epoch) == (True, False, 7)
    assert {batch.codec for batch in java.ours_listed} == {*compressions()}


def test_keys_are_where_java_puts_them(java: Java) -> None:
    pairs = zip(java.ours, java.ours_listed, strict=True)
    assert all(
        partition in (-1, batch.partition) and (partition >= 0 or batch.partition == 3)
        for batch, found in pairs
        for partition in found.partitions
    )
