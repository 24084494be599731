"""The plug-ins with which the coordinator ends transactions, each with the clusters named at the start.

Entry-point group ``onceward.committers``: the name is the kind of a sink, the value a callable ``(clusters, *,
generation=...) -> Committer``. The argument ``generation`` names the generation that it acts for, so that it touches
nothing newer. The methods of a committer block: call them in threads.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from importlib.metadata import entry_points
from typing import Any, Protocol, Self

from onceward.common.errors import ConfigurationError, OncewardError
from onceward.protocol.committing import Age, Committer
from onceward.protocol.encoded import decoding
from onceward.protocol.values import NO_GENERATION, Committable, Generation

__all__ = ["COMMITTERS", "Committers", "MakeCommitter", "installed_committers"]

COMMITTERS = "onceward.committers"


class MakeCommitter(Protocol):
    """``generation`` returns the current generation while the committer works."""

    def __call__(self, clusters: Iterable[Any], *, generation: Callable[[], int | None] = ...) -> Committer: ...


class Committers:
    """Creates committers by the kind of a sink.

    :param clusters: by name; opaque here, passed to the plug-ins.
    """

    def __init__(self, plugins: Mapping[str, MakeCommitter], clusters: Mapping[str, Any]) -> None:
        self._plugins = dict(plugins)
        self._clusters = dict(clusters)

    @classmethod
    def installed(cls, clusters: Mapping[str, Any]) -> Self:
        """The committers of installed distributions. Raises ConfigurationError for one that cannot be loaded."""
        return cls(installed_committers("started") if clusters else {}, clusters)

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of the clusters. If empty, this coordinator cannot end any transaction."""
        return tuple(self._clusters)

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

    def make(self, kind: str, generation: Generation, cluster: str | None = None) -> Committer:
        """A committer for all clusters, or for the one named. The caller closes it. Raises ConfigurationError."""
        plugin = self._plugins.get(kind)
        if plugin is None:
            known = ", ".join(sorted(self._plugins)) or "none"
            raise ConfigurationError(
                f"No committer for sinks of kind {kind} is installed beside this coordinator (known: {known}). Their "
                "transactions stay as they are. Install it here, or start the job: its driver ends them."
            )
        clusters = self._clusters.values() if cluster is None else [self._clusters[cluster]]
        return plugin(clusters, generation=lambda: generation)


def installed_committers(done: str) -> Mapping[str, MakeCommitter]:
    """Committers by the kind of their sinks. Raises ConfigurationError; ``done`` completes its message "Nothing was
    ..."."""
    plugins: dict[str, MakeCommitter] = {}
    for point in entry_points(group=COMMITTERS):
        try:
            plugins[point.name] = point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"The committer for sinks of kind {point.name} ({point.value}) cannot be loaded: {error}. Nothing was "
                f"{done}. Install what it needs, for example with: pip install 'onceward[kafka]'; or leave --clusters "
                "out: then only drivers ask the brokers."
            ) from error
    return plugins
