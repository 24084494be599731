"""A link that can be disturbed. A change counts as done only after it was read back from the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from onceward.dev.errors import ToxiproxyError
from onceward.dev.toxiproxy.api import Api

__all__ = ["Link", "Stream", "Toxic"]


class Stream(StrEnum):
    """The direction of a toxic: requests go up to the server, answers come down from it."""

    UP = "upstream"
    DOWN = "downstream"


@dataclass(frozen=True, kw_only=True, slots=True)
class Toxic:
    """One disturbance of one direction; it always affects every connection (toxicity 1.0).

    ``type`` and ``attributes`` as in toxiproxy: ``latency`` (latency, jitter: ms), ``bandwidth`` (rate: KB/s),
    ``slow_close`` (delay: ms), ``timeout`` (timeout: ms, 0 = never), ``reset_peer`` (timeout: ms), ``slicer``
    (average_size, size_variation: bytes, delay: µs), ``limit_data`` (bytes).
    """

    type: str
    stream: Stream
    attributes: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.type}_{self.stream}"


class Link:
    """A proxy of a running `LocalToxiproxy`. Not thread-safe. Every method raises `ToxiproxyError`."""

    def __init__(self, api: Api, name: str) -> None:
        """Created by `LocalToxiproxy.link`."""
        self._api, self.name = api, name

    @property
    def address(self) -> str:
        """The address for clients, ``host:port``."""
        return str(self._state()["listen"])

    @property
    def upstream(self) -> str:
        """The address that the link leads to, ``host:port``."""
        return str(self._state()["upstream"])

    @property
    def up(self) -> bool:
        """Whether it accepts connections."""
        return bool(self._state()["enabled"])

    def toxics(self) -> list[Toxic]:
        """Return the active toxics."""
        return [
            Toxic(type=one["type"], stream=Stream(one["stream"]), attributes=one["attributes"])
            for one in self._state()["toxics"]
        ]

    def add(self, toxic: Toxic) -> None:
        """Add a toxic; it also affects open connections, except ``reset_peer``: see `drop`."""
        wanted = {
            "name": toxic.name,
            "type": toxic.type,
            "stream": toxic.stream.value,
            "toxicity": 1.0,
            "attributes": dict(toxic.attributes),
        }
        self._api.call("post", f"/proxies/{self.name}/toxics", wanted)
        found = [one for one in self.toxics() if one.name == toxic.name]
        # the server adds omitted attributes
        if not found or not toxic.attributes.items() <= found[0].attributes.items():
            raise self._disobeyed(f"have the toxic {toxic}", found)

    def remove(self, toxic: Toxic) -> None:
        """Remove a toxic. Removing a ``timeout`` closes every connection of the link; that is toxiproxy's behaviour."""
        self._api.call("delete", f"/proxies/{self.name}/toxics/{toxic.name}")
        if toxic.name in {one.name for one in self.toxics()}:
            raise self._disobeyed(f"be rid of {toxic.name}", self.toxics())

    def cut(self) -> None:
        """Close every connection and refuse new ones."""
        self._change(enabled=False)

    def mend(self) -> None:
        """Accept connections again; toxics remain."""
        self._change(enabled=True)

    def drop(self) -> None:
        """Close every connection; new ones are accepted at once and affected by all toxics from their first byte."""
        self.cut()
        self.mend()

    def lead(self, upstream: str) -> None:
        """Redirect the link to ``upstream``, ``host:port``. Closes open connections."""
        self._change(upstream=upstream)

    def heal(self) -> None:
        """Remove all toxics and accept connections."""
        for toxic in self.toxics():
            self.remove(toxic)
        if not self.up:
            self.mend()

    def _change(self, **wanted: bool | str) -> None:
        self._api.call("post", f"/proxies/{self.name}", wanted)
        state = self._state()
        if any(state[name] != value for name, value in wanted.items()):
            raise self._disobeyed(f"be {wanted}", state)

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._api.call("get", f"/proxies/{self.name}")
        return state

    def _disobeyed(self, wanted: str, found: object) -> ToxiproxyError:
        return ToxiproxyError(f"The link {self.name} was set to {wanted}, but its toxiproxy reports {found}.")
