"""The systems that a process may reach, as its file of systems names them.

The methods of a system block: a coordinator calls them in threads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from onceward.common.errors import ConfigurationError, OncewardError
from onceward.coordinator.service.kinds import installed_kinds, part
from onceward.protocol.committing import Age, System
from onceward.protocol.encoded import decoding
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.values import NO_GENERATION, Committable, Generation

__all__ = ["OpenSystem", "Routed", "Systems", "route"]


class OpenSystem(Protocol):
    """Opens a system by its configuration. ``generation`` returns the generation for which it works, so that it touches
    nothing newer."""

    def __call__(self, configuration: Any, /, *, generation: Callable[[], int | None] = ...) -> System: ...


class Systems:
    """Opens systems by name.

    :param kinds: how to open a system of each kind that is installed.
    :param systems: by name.
    """

    def __init__(self, kinds: Mapping[str, OpenSystem], systems: Mapping[str, NamedSystem]) -> None:
        self._kinds = dict(kinds)
        self._systems = dict(systems)

    @classmethod
    def installed(cls, systems: Mapping[str, NamedSystem], done: str) -> Self:
        """The systems of the kinds that are installed. Raises ConfigurationError for a kind that cannot be loaded;
        ``done`` completes its message "Nothing was ..."."""
        named = {one.kind for one in systems.values()}
        kinds = {
            name: part(name, kind.system, done)
            for name, kind in installed_kinds(done).items()
            if kind.system and name in named
        }
        return cls(kinds, systems)

    @property
    def names(self) -> tuple[str, ...]:
        """If empty, this process cannot end any transaction."""
        return tuple(self._systems)

    @property
    def unusable(self) -> Mapping[str, str]:
        """The systems whose kind is not installed here, with their kinds."""
        return {name: one.kind for name, one in self._systems.items() if one.kind not in self._kinds}

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """The names of the systems of this kind that can be asked."""
        return tuple(name for name, one in self._systems.items() if one.kind == kind) if kind in self._kinds else ()

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
        """The one whose transaction is open for longest, decoded; None if no age is known. Asks no system."""
        try:
            with closing(self.any(kind)) as system:
                aged = [(age.open_for, one) for one in decoding(committables) if (age := system.age(one)) is not None]
        except OncewardError:
            return None  # an unknown document or kind: the error is reported when it is settled
        return max(aged, key=lambda pair: pair[0], default=(None, None))[1]

    def age(self, kind: str, committable: Committable) -> Age | None:
        """The age of a decoded one. Asks no system."""
        try:
            with closing(self.any(kind)) as system:
                return system.age(committable)
        except OncewardError:
            return None

    def open(self, name: str, generation: Generation) -> System:
        """Open a system; the caller closes it. Raises ConfigurationError."""
        named = self._systems[name]
        opens = self._kinds.get(named.kind)
        if opens is None:
            raise self._not_installed(named.kind)
        return opens(named.configuration, generation=lambda: generation)

    def any(self, kind: str, generation: Generation = NO_GENERATION) -> System:
        """Open a system of a kind, to read committables with; the caller closes it. Raises ConfigurationError."""
        if missing := self.missing([kind]):
            raise missing
        return self.open(self.of_kind(kind)[0], generation)

    def route(self, kind: str, committables: Sequence[Committable]) -> "Routed":
        """Find the system of each committable. See :func:`route`."""
        names = self.of_kind(kind)
        if len(names) == 1:
            return Routed(here={names[0]: committables})  # it says itself what is elsewhere
        with ExitStack() as stack:
            opened = {name: stack.enter_context(closing(self.open(name, NO_GENERATION))) for name in names}
            return route(opened, committables)

    def _not_installed(self, kind: str) -> ConfigurationError:
        known = ", ".join(sorted(self._kinds)) or "none"
        return ConfigurationError(
            f"No system of kind {kind} is installed beside this process (known: {known}). The transactions of such "
            "sinks stay as they are. Install the kind here, or start the job: its driver ends them."
        )


@dataclass(frozen=True, kw_only=True)
class Routed:
    """On which systems committables are."""

    here: Mapping[str, Sequence[Committable]] = field(default_factory=dict)
    """By the name of the system here."""
    elsewhere: Mapping[int, str] = field(default_factory=dict)
    """By slot: no system here is theirs, because all have answered with other ids. Nothing was asked about them."""
    unknown: Mapping[int, str] = field(default_factory=dict)
    """By slot: a system that has not answered may be theirs, and why it has not."""


def route(systems: Mapping[str, System], committables: Sequence[Committable]) -> Routed:
    """Find the system of each committable by the id that it gives itself, never by its address.

    Systems whose names the committables have are asked first, and the search ends once all are found: a dead system
    delays only its own committables. Raises HaltedError for an unreadable committable.
    """
    places = {one.slot: next(iter(systems.values())).place(one) for one in committables}
    names, wanted = {place.name for place in places.values()}, {place.id for place in places.values()}
    found: dict[str, str] = {}
    silent = ""
    for name in sorted(systems, key=lambda name: name not in names):
        if wanted <= found.keys():
            break
        try:
            found[systems[name].id()] = name
        except OncewardError as error:
            silent = str(error)
    here: dict[str, list[Committable]] = {}
    elsewhere: dict[int, str] = {}
    unknown: dict[int, str] = {}
    for one in committables:
        place = places[one.slot]
        if place.id in found:
            here.setdefault(found[place.id], []).append(one)
        elif silent:
            unknown[one.slot] = silent
        else:
            others = ", ".join(f"{name!r} is {itself}" for itself, name in found.items())
            elsewhere[one.slot] = (
                f"the transaction is on system {place.name!r} with id {place.id}, but the systems reached now are "
                f"others ({others}); nothing was asked there"
            )
    return Routed(here=here, elsewhere=elsewhere, unknown=unknown)
