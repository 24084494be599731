"""The error that a driver gets when its generation is over."""

from onceward.coordinator.errors import FencedError, GenerationEndedError, OncewardError
from onceward.coordinator.protocol.answers import Answer

__all__ = ["generation_over"]


def generation_over(job: str, generation: int, answer: Answer) -> OncewardError:
    """Return the error for a FENCED ``answer``: GenerationEndedError if the driver may come back, else FencedError."""
    said = f"Generation {generation} of job {job} is over: {answer.detail}."
    if answer.may_return:
        return GenerationEndedError(f"{said} Completed checkpoints are settled; the rest is aborted and read again.")
    return FencedError(
        f"{said} The next generation settles completed checkpoints; this process ends no more transactions."
    )
