"""Time that passes only when a test, or the code under test, lets it pass."""

__all__ = ["ManualTime"]


class ManualTime:
    """Replaces ``time`` in a module: ``monkeypatch.setattr(module, "time", ManualTime())``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
