"""What a program says of one of several outputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Sink
from onceward.protocol.values import ParticipantName

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    Expression: TypeAlias = str | Column

__all__ = ["Output", "outputs_of"]


@dataclass(frozen=True)
class Output:
    """One of the places that a job writes to, and the records that go there.

    sink: where they go. The key in ``outputs=`` names it, whatever ``name=`` it was given.
    where: a condition on the columns of the job's transform, SQL or a Column; without one, every record. As in SQL, a
        record for which it is null does not go there.
    select: expressions of these columns, SQL or Columns; without any, all columns, or what a job without a transform
        copies.
    transform: instead of both, a lazy function of the job's transformed DataFrame, as :class:`Pipeline` takes it. Such
        an output is a branch: Spark reads and transforms the input for it again, in a job of its own. All other
        outputs share one pass over the input.
    """

    sink: Sink
    where: "Expression | None" = None
    select: "Sequence[Expression] | None" = None
    transform: "Callable[[DataFrame], DataFrame] | None" = None

    @property
    def plans(self) -> bool:
        """Whether Spark must plan it for certain."""
        return self.where is not None or self.select is not None or self.transform is not None


def outputs_of(sink: Sink | None, outputs: Mapping[str, Output] | None) -> Mapping[ParticipantName, Output]:
    """Return the outputs of a job by name, each with its sink under that name. Raises ConfigurationError listing
    everything that is wrong."""
    if (sink is None) == (outputs is None):
        raise ConfigurationError("sink and outputs: give one of them. Nothing was started.")
    if sink is not None:
        return {sink.participant.name: Output(sink)}
    assert outputs is not None
    problems = [*_problems(outputs)] if isinstance(outputs, Mapping) and outputs else [f"{outputs!r} has none"]
    if problems:
        raise ConfigurationError(
            "outputs: needs a mapping of names to Output(...). Nothing was started. Change these:\n"
            + "\n".join(f"  - {problem}" for problem in problems)
        )
    named = {ParticipantName(name): output for name, output in outputs.items()}
    return {name: replace(output, sink=output.sink.named(name)) for name, output in named.items()}


def require_whole(outputs: Mapping[ParticipantName, Output]) -> None:
    """Raise ConfigurationError if an output has expressions: a function on batches makes what is written."""
    if planned := [name for name, output in outputs.items() if output.plans]:
        raise ConfigurationError(
            f"outputs: {', '.join(planned)}: where=, select= and transform= are for DataFrames, and this job has "
            "transform_batches, which decides for each output what it gets. Nothing was started. Leave one of both out."
        )


def require_one_pass(outputs: Mapping[ParticipantName, Output]) -> None:
    """Raise ConfigurationError if an output is a branch: Spark runs a batch of a query once, with its state."""
    if branches := [name for name, output in outputs.items() if output.transform is not None]:
        raise ConfigurationError(
            f"outputs: {', '.join(branches)}: transform= would run each batch of the query again. Nothing was started. "
            "Use where= and select=, and put the rest into the query."
        )


def _problems(outputs: Mapping[Any, Any]) -> Sequence[str]:
    found = []
    for name, output in outputs.items():
        try:
            ParticipantName(name)
        except (TypeError, ValueError) as error:
            found.append(f"{name!r}: {error}")
        if not isinstance(output, Output) or not isinstance(output.sink, Sink):
            found.append(f"{name!r}: {output!r} is no Output(sink)")
        elif output.transform is not None and (output.where is not None or output.select is not None):
            found.append(f"{name!r}: transform= does what where= and select= do; give it or these")
        elif (transform := output.transform) is not None and not callable(cast(object, transform)):
            found.append(f"{name!r}: transform: {transform!r} is not a function")
        elif output.select is not None and (isinstance(output.select, str) or not output.select):
            found.append(f"{name!r}: select: {output.select!r} is not a list of expressions")
    return found
