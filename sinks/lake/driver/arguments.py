"""The arguments that sinks of tables have in common."""

from collections.abc import Iterable, Iterator

from onceward.common.errors import ConfigurationError
from onceward.protocol.values import OnLost, Participant, ParticipantName, Role

__all__ = ["participant_of"]

_ON_LOST = ("replay", "halt", "skip")


def participant_of(
    kind: str, *, name: str, schema: str, schemas: tuple[str, str], on_lost: str, problems: Iterable[str]
) -> Participant:
    """Return the participant of a sink. ``schemas``: the values that ``schema`` may have. ``problems``: of its other
    arguments. Raises ConfigurationError listing every invalid argument."""
    found = [*problems, *_problems(name, schema, schemas, on_lost)]
    if found:
        raise ConfigurationError(
            f"This {kind.capitalize()}Sink cannot be used; nothing was opened. Change these arguments:\n"
            + "\n".join(f"  - {problem}" for problem in found)
        )
    return Participant(name=ParticipantName(name), role=Role.SINK, kind=kind, on_lost=OnLost(on_lost))


def _problems(name: str, schema: str, schemas: tuple[str, str], on_lost: str) -> Iterator[str]:
    try:
        ParticipantName(name)
    except (TypeError, ValueError) as error:
        yield f"name: {error}"
    if schema not in schemas:
        yield f"schema: {schema!r} is neither {schemas[0]!r} nor {schemas[1]!r}"
    if on_lost not in _ON_LOST:
        yield f"on_lost: {on_lost!r} is none of {', '.join(map(repr, _ON_LOST))}"
