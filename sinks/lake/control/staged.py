"""Data files that no settled checkpoint has: each has a note, which is written before the file and removed after it.

The notes, empty files of the same names, are in a folder of their own, so that leftovers are found without listing the
table. A commit removes them before it is reported, so a note that is left belongs to a file that was not committed,
with one exception: a person may have ruled on a commit. So a file that the table has is never deleted.
"""

from collections.abc import Callable, Collection, Sequence

from onceward.connections.storage import Storage
from onceward.sinks.lake.identifiers import StagedName, data_path, staged_folder

__all__ = ["delete_files", "notes", "remove_notes"]


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
        storage.delete(data_path(folder, name) for name in names if name not in committed)
        remove_notes(storage, job, names)


def remove_notes(storage: Storage, job: str, names: Collection[str]) -> None:
    """Raises StorageError."""
    storage.delete(f"{staged_folder(job)}/{name}" for name in names)
