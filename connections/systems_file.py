"""The file of ``--systems``: which systems a process may reach, and of which kind they are.

[systems.main]
kind = "kafka"
bootstrap_servers = "kafka-1:9092,kafka-2:9092"

[systems.main.config]
"security.protocol" = "SASL_SSL"
"sasl.mechanisms" = "SCRAM-SHA-512"
"sasl.username" = "onceward"
"sasl.password" = "file:/run/secrets/kafka"

``[clusters.NAME]`` is the same as ``[systems.NAME]`` with ``kind = "kafka"``.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from onceward.common.errors import ConfigurationError

__all__ = ["SystemTable", "read_systems"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SystemTable:
    """One table of the file."""

    name: str
    heading: str
    """As it stands in the file, such as ``[systems.main]``."""
    kind: str
    content: Mapping[str, Any]
    """All keys but ``kind``."""


def read_systems(file: Path, made_of: Callable[[SystemTable], T], *, only: str = "") -> Mapping[str, T]:
    """Return what ``made_of`` makes of each table, by name; ``only``: of the tables of this kind, and there must be
    one. Raises ConfigurationError that lists every problem, also those that ``made_of`` raises."""
    tables, problems = _tables(file)
    made: dict[str, T] = {}
    for table in tables:
        if only in ("", table.kind):
            try:
                made[table.name] = made_of(table)
            except ConfigurationError as error:
                problems.append(f"{table.heading} {error}")
    if problems or not made:
        raise _unusable(file, problems or [f"no table is of kind {only}"])
    return made


def _tables(file: Path) -> tuple[Sequence[SystemTable], list[str]]:
    """Return the tables, and what is wrong beside them. Raises ConfigurationError without a table."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unusable(file, [error.strerror or "it cannot be read"]) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _unusable(file, [f"it is not TOML: {error}"]) from None
    systems, clusters = content.pop("systems", {}), content.pop("clusters", {})
    problems = [f"{key}: unknown, only tables [systems.NAME] and [clusters.NAME] belong here" for key in content]
    tables: dict[str, SystemTable] = {}
    for place, kind, found in (("systems", "", systems), ("clusters", "kafka", clusters)):
        for name, table in (found if isinstance(found, dict) else {}).items():
            heading = f"[{place}.{name}]"
            if not isinstance(table, dict):
                problems.append(f"{heading} must be a table")
            elif name in tables:
                problems.append(f"{heading} has the name of {tables[name].heading}")
            elif not isinstance(of := table.get("kind", kind), str) or not of:
                problems.append(f'{heading} kind: name the kind of system as text, such as "kafka"')
            elif kind and "kind" in table:
                problems.append(f"{heading} kind: belongs into tables [systems.NAME]; these are all of kind {kind}")
            else:
                left = {key: value for key, value in table.items() if key != "kind"}
                tables[name] = SystemTable(name=name, heading=heading, kind=of, content=left)
    if not tables:
        raise _unusable(file, [*problems, "there is no table [systems.NAME] or [clusters.NAME]"])
    return list(tables.values()), problems


def _unusable(file: Path, problems: Sequence[str]) -> ConfigurationError:
    return ConfigurationError(
        f"The systems file {file} cannot be used; nothing was connected. Change these:\n"
        + "\n".join(f"  - {problem}" for problem in problems)
    )
