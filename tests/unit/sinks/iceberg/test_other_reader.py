"""The crash suite's reader of an Iceberg table, which has no code of the sink, against the library's."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from tests.support.job_tables import IcebergTables

ROW = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def rows(*values: bytes, key: bytes | None = None) -> pa.Table:
    return pa.table({"key": [key] * len(values), "value": [*values]}, ROW)


def test_the_reader_finds_the_rows_of_the_newest_snapshot_each_as_often_as_it_is_there(tmp_path: Path) -> None:
    tables = IcebergTables(tmp_path)
    tables.create("job")
    assert tables.rows("job") == Counter()
    table = SqlCatalog(**tables.settings).load_table(tables.TABLE)
    for written in (rows(b"a", b"b"), rows(b"c", key=b"k"), rows(b"a")):
        table.append(written)
    assert tables.rows("job") == Counter({(None, b"a"): 2, (None, b"b"): 1, (b"k", b"c"): 1})
    table.delete("key is not null")
    assert tables.rows("job") == Counter({(None, b"a"): 2, (None, b"b"): 1})
    (file, *_) = {one.file.file_path for one in table.refresh().scan().plan_files()}
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        for task in table.scan().plan_files():
            if task.file.file_path == file:
                append.append_data_file(task.file)
    twice = Counter((row["key"], row["value"]) for row in table.refresh().scan().to_arrow().to_pylist())
    assert tables.rows("job") == twice, "a file that was added twice"
    assert twice.total() > 3
    tables.create("next")
    assert tables.rows("next") == Counter()


def test_a_file_that_no_snapshot_has_is_left(tmp_path: Path) -> None:
    tables = IcebergTables(tmp_path)
    tables.create("job")
    table = SqlCatalog(**tables.settings).load_table(tables.TABLE)
    table.append(rows(b"a"))
    place = Path(table.location().removeprefix("file://"))
    stray = "part-onceward-job.iceberg.1.2.0.0-0123456789abcdef.parquet"
    (place / "data" / stray).touch()
    (place / "_onceward/staged/job").mkdir(parents=True)
    (place / "_onceward/staged/job" / stray).touch()
    assert tables.left("job") == [stray, f"the note of {stray}"]
    assert tables.left("other") == []
    tables.lose("job")
    assert tables.left("job") == [f"the note of {stray}"]
    assert tables.rows("job") == Counter({(None, b"a"): 1})
