"""The committers with which the coordinator ends transactions on the systems named at its start.

The methods of a committer block: call them in threads.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from typing import Any, Protocol, Self

from onceward.common.errors import ConfigurationError, OncewardError
from onceward.coordinator.service.kinds import installed_kinds, part
from onceward.protocol.committing import Age, Committer
from onceward.protocol.encoded import decoding
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.values import NO_GENERATION, Committable, Generation

__all__ = ["Committers", "MakeCommitter", "installed_committers"]


class MakeCommitter(Protocol):
    """``generation`` returns the generation for which the committer works, so that it touches nothing newer."""

    def __call__(self, systems: Iterable[Any], /, *, generation: Callable[[], int | None] = ...) -> Committer: ...


class Committers:
    """Creates committers by kind of system.

    :param plugins: by kind.
    :param systems: by name.
    """

    def __init__(self, plugins: Mapping[str, MakeCommitter], systems: Mapping[str, NamedSystem]) -> None:
        self._plugins = dict(plugins)
        self._systems = dict(systems)

    @classmethod
    def installed(cls, systems: Mapping[str, NamedSystem]) -> Self:
        """The committers of the kinds in ``systems`` that are installed. Raises ConfigurationError for one that cannot
        be loaded."""
        return cls(installed_committers("started", {one.kind for one in systems.values()}), systems)

    @property
    def systems(self) -> tuple[str, ...]:
        """The names of the systems. If empty, this coordinator cannot end any transaction."""
        return tuple(self._systems)

    @property
    def unusable(self) -> Mapping[str, str]:
        """The systems whose kind is not installed here, with their kinds."""
        return {name: one.kind for name, one in self._systems.items() if one.kind not in self._plugins}

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """The names of the systems of this kind that can be asked."""
        return tuple(name for name, one in self._systems.items() if one.kind == kind) if kind in self._plugins else ()

    def missing(self, kinds: Iterable[str]) -> ConfigurationError | None:
        """Why nothing can be ended for sinks of one of these kinds; None if all can be asked."""
        for kind in kinds:
            if kind in self.unusable.values():
                return self._not_installed(kind)
            if not self.of_kind(kind):
                return ConfigurationError(
                    f"This coordinator knows no system of kind {kind}. The transactions of such sinks stay as they "
                    "are. Name it in the file of --systems, or start the job: its driver ends them."
                )
        return None

    def oldest(self, kind: str, committables: Iterable[Committable]) -> Committable | None:
        """The one whose transaction is open for longest, decoded; None if no age is known. Contacts no broker."""
        try:
            with closing(self.make(kind, NO_GENERATION)) as committer:
                aged = [
                    (age.open_for, one) for one in decoding(committables) if (age := committer.age(one)) is not None
                ]
        except OncewardError:
            return None  # an unknown document or plug-in: the error is reported when it is settled
        return max(aged, key=lambda pair: pair[0], default=(None, None))[1]

    def age(self, kind: str, committable: Committable) -> Age | None:
        """The age of a decoded one; contacts no broker."""
        try:
            with closing(self.make(kind, NO_GENERATION)) as committer:
                return committer.age(committable)
        except OncewardError:
            return None

    def make(self, kind: str, generation: Generation, system: str | None = None) -> Committer:
        """A committer for all systems of a kind, or for the one named. The caller closes it. Raises
        ConfigurationError."""
        plugin = self._plugins.get(kind)
        if plugin is None:
            raise self._not_installed(kind)
        names = self.of_kind(kind) if system is None else (system,)
        return plugin([self._systems[name].configuration for name in names], generation=lambda: generation)

    def _not_installed(self, kind: str) -> ConfigurationError:
        known = ", ".join(sorted(self._plugins)) or "none"
        return ConfigurationError(
            f"No committer for sinks of kind {kind} is installed beside this coordinator (known: {known}). Their "
            "transactions stay as they are. Install it here, or start the job: its driver ends them."
        )


def installed_committers(done: str, kinds: Collection[str] | None = None) -> Mapping[str, MakeCommitter]:
    """Committers by kind, of all kinds or of these. Raises ConfigurationError; ``done`` completes its message "Nothing
    was ..."."""
    return {
        name: part(name, kind.committer, done)
        for name, kind in installed_kinds(done).items()
        if kind.committer and (kinds is None or name in kinds)
    }
