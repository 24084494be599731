"""Options and arguments that several commands share."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onceward.common.errors import ConfigurationError
from onceward.protocol.kinds import NamedSystem

if TYPE_CHECKING:
    from onceward.operate.connecting import CoordinatorLocation

__all__ = [
    "ClustersOption",
    "CoordinatorOption",
    "JobArgument",
    "JsonOption",
    "LetterTopicOption",
    "LimitOption",
    "MaybeJobArgument",
    "NameOption",
    "NoWaitOption",
    "ServersOption",
    "StateDirOption",
    "UtcOption",
    "View",
    "WatchOption",
    "not_installed",
    "password_of",
    "place_of",
    "systems_of",
    "view_of",
]

CoordinatorOption = Annotated[
    str | None,
    typer.Option(
        "--coordinator", envvar="ONCEWARD_COORDINATOR", metavar="ADDRESS", help="HOST:PORT of a running onceward serve."
    ),
]
StateDirOption = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        help="Find the coordinator inside a running job through its directory: $ONCEWARD_STATE_DIR or ./.onceward.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
UtcOption = Annotated[bool, typer.Option("--utc", help="Show times in UTC instead of ages.")]
WatchOption = Annotated[bool, typer.Option("--watch", help="Keep the listing up to date until Ctrl-C.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
MaybeJobArgument = Annotated[str | None, typer.Argument(metavar="[JOB]", help="The job's name; all jobs without it.")]
LimitOption = Annotated[int, typer.Option(min=1, max=1000, help="The most rows to list.")]
NameOption = Annotated[str, typer.Option(help="A name for the savepoint.")]
ClustersOption = Annotated[
    Path | None,
    typer.Option(
        "--systems",
        "--clusters",
        metavar="FILE",
        help="Systems to ask, as for onceward serve. Without it, their state is unknown.",
    ),
]
ServersOption = Annotated[
    str | None, typer.Option("--servers", metavar="HOST:PORT", help="Bootstrap servers of the cluster.")
]
LetterTopicOption = Annotated[
    str | None,
    typer.Option("--topic", metavar="[CLUSTER:]TOPIC", help="Where the letters are. Default: where the job writes."),
]
NoWaitOption = Annotated[bool, typer.Option("--no-wait", "--detached", help="Do not wait for it.")]


def place_of(coordinator: str | None, state_dir: Path | None) -> "CoordinatorLocation":
    from onceward.operate.connecting import CoordinatorLocation

    return CoordinatorLocation(coordinator=coordinator, state_dir=state_dir)


def not_installed(what: str, error: ImportError) -> ConfigurationError:
    return ConfigurationError(
        f"{what} needs packages that are not installed ({error.name}). Nothing was started. Install them with: pip "
        "install 'onceward[spark]'"
    )


@dataclass(frozen=True, kw_only=True)
class View:
    """How a listing is shown."""

    as_json: bool
    utc: bool
    watch: bool


def view_of(*, as_json: bool, utc: bool, watch: bool) -> View:
    """Raises ConfigurationError for options that exclude each other, and for ``--watch`` without a terminal."""
    if as_json and (utc or watch):
        raise ConfigurationError("--json goes with neither --utc nor --watch. Nothing was listed.")
    if watch and not sys.stdout.isatty():
        raise ConfigurationError("--watch needs a terminal. Nothing was listed. Leave it out, or use --json.")
    return View(as_json=as_json, utc=utc, watch=watch)


def systems_of(file: Path, done: str) -> Mapping[str, NamedSystem]:
    """Return the systems that ``--systems`` names. The table of a kind that is not installed is not read. Raises
    ConfigurationError that lists every problem; ``done`` says what was not done."""
    from onceward.connections.systems_file import SystemTable, read_systems
    from onceward.coordinator.service.kinds import installed_kinds, part

    kinds = installed_kinds(done)

    def system(table: SystemTable) -> NamedSystem:
        kind = kinds.get(table.kind)
        if kind is None:
            return NamedSystem(kind=table.kind, configuration=None)
        if not kind.configuration:
            raise ConfigurationError(f"kind: {table.kind} needs no system")
        configuration = part(table.kind, kind.configuration, done)(table.name, table.content)
        return NamedSystem(kind=table.kind, configuration=configuration)

    return read_systems(file, system)


def password_of(reference: str | None, done: str) -> str | None:
    """Return the secret that ``--store-password`` refers to. Raises ConfigurationError; ``done`` says what was not
    done."""
    if reference is None:
        return None
    from onceward.connections.secrets import reference_problem, resolve

    if (problem := reference_problem(reference)) is not None:
        # not repeated in the message: it may be the password itself
        raise ConfigurationError(f"--store-password: {problem}. Nothing was {done}. Use env:NAME or file:PATH.")
    return resolve(reference, key="--store-password", readers="the coordinator")
