"""Data files that no settled checkpoint has: each has a note, which is written before the file and removed after it.

The notes, empty files of the same names, are in a folder of their own, so that leftovers are found without listing the
table. A commit removes them before it is reported, so a note that is left belongs to a file that was not committed,
with one exception: a person may have ruled on a commit. So a file that the table has is never deleted.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from onceward.common.killpoints import KillPoint, kill_point
from onceward.connections.storage import Storage
from onceward.sinks.lake.documents import WrittenFile
from onceward.sinks.lake.identifiers import StagedName, data_path, staged_folder

__all__ = ["delete_files", "missing", "notes", "remove_notes"]

_ASKED_AT_ONCE = 16


def missing(storage: Storage, files: Sequence[WrittenFile]) -> Sequence[str]:
    """The paths of those files that are gone, or not as they were written. Raises StorageError."""
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as asking:  # a store takes a while for each answer
        sizes = asking.map(storage.size, [one.path for one in files])
        return [one.path for one, size in zip(files, sizes, strict=True) if size != one.size]


def notes(storage: Storage, job: str) -> Sequence[StagedName]:
    """The files of ``job`` that have a note, in the order of their names. Raises StorageError."""
    parsed = map(StagedName.parse, sorted(storage.names(staged_folder(job))))
    return [name for name in parsed if name is not None and name.job == job]


def delete_files(
    storage: Storage, folder: str, job: str, names: Collection[str], in_table: Callable[[], Collection[str]]
) -> None:
    """Delete files, but for those that the table has; then their notes. ``folder``: of the table's data files.
    ``in_table`` returns the names of the table's files. Raises StorageError."""
    if names:
        committed = in_table()
        left = [data_path(folder, name) for name in names if name not in committed]
        storage.delete(left)
        kill_point(KillPoint.TABLE_AFTER_DELETE)
        remove_notes(storage, job, names)
        # A task may have made its file between the two. One that makes it now misses its note, and deletes the file.
        storage.delete(left)


def remove_notes(storage: Storage, job: str, names: Collection[str]) -> None:
    """Raises StorageError."""
    storage.delete(f"{staged_folder(job)}/{name}" for name in names)
