"""The network between drivers and coordinator: what becomes of one message."""

from dataclasses import dataclass
from random import Random

__all__ = ["Link", "LinkFaults"]


@dataclass(frozen=True, kw_only=True)
class LinkFaults:
    """How often a message meets what."""

    loss: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.0
    """Arrives late, up to `SLOWEST_S`: often after the sender gave up and asked again."""


SLOWEST_S = 12.0


class Link:
    """One direction-less link. Faults can be switched off for good; it can be cut for a while."""

    def __init__(self, random: Random, faults: LinkFaults) -> None:
        self._random = random
        self._faults = faults
        self._quiet = faults == LinkFaults()
        self.cut = False
        self.lost = self.duplicated = self.slowed = 0

    def heal(self) -> None:
        """No faults from now on."""
        self._quiet = True
        self.cut = False

    def fate(self) -> tuple[float, ...]:
        """Delays of the copies that arrive; empty when the message is lost."""
        random = self._random
        usual = 0.0003 + 0.002 * random.random()
        if self.cut:
            self.lost += 1
            return ()
        if self._quiet:
            return (usual,)
        faults, dice = self._faults, random.random()
        if dice < faults.loss:
            self.lost += 1
            return ()
        dice -= faults.loss
        if dice < faults.duplicate:
            self.duplicated += 1
            return (usual, random.random() * random.choice((0.01, 1.0, SLOWEST_S)))
        dice -= faults.duplicate
        if dice < faults.slow:
            self.slowed += 1
            return (random.random() * random.choice((0.05, 1.0, SLOWEST_S)),)
        return (usual,)
