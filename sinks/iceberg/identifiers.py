"""Names of what this sink writes. The library's other names are its own."""

from typing import Final

__all__ = ["FOLDER"]

FOLDER: Final = "data"
"""The folder of data files, in the table's location."""
