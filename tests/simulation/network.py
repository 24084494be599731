"""The network between drivers and coordinator: the fate of each message."""

from dataclasses import dataclass
from random import Random

__all__ = ["Link", "LinkFaults"]


@dataclass(frozen=True, kw_only=True)
class LinkFaults:
    """How often a message meets each fault."""

    loss: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.0
    """Arrives late, up to `SLOWEST_S`: often after the sender gave up and retried."""


SLOWEST_S = 12.0


class Link:
    """One link, for both directions. Its faults can be ended; it can be cut for a while."""

    def __init__(self, random: Random, faults: LinkFaults) -> None:
        self._random = random
        self._faults = faults
        self._quiet = faults == LinkFaults()
        self.cut = False
        self.lost = self.duplicated = self.slowed = 0

    def heal(self) -> None:
        """End all faults."""
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
