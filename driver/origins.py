"""From which input each slot of a checkpoint was made, and whether a lost slot can be made from it again."""

from collections import Counter
from collections.abc import Callable, Sequence

from onceward.connectors.interfaces import Origin, ReplayRefusedError, Replays, SinkSession
from onceward.driver.outputs import Inputs, Origins
from onceward.protocol.values import Committable, JsonObject

__all__ = ["lost_splits", "origins_of", "slot_origins"]


def origins_of(inputs: Inputs, describe: Callable[[Sequence[JsonObject]], str]) -> Origins:
    """Return the origin of each slot, for each sink; those that share their inputs share them."""
    made = {id(each): slot_origins(each, describe) for each in {id(each): each for each in inputs.values()}.values()}
    return {name: made[id(each)] for name, each in inputs.items()}


def slot_origins(
    inputs: Sequence[Sequence[JsonObject]], describe: Callable[[Sequence[JsonObject]], str]
) -> tuple[Origin, ...]:
    """Return the origin of each slot. ``inputs[slot]``: the splits that made it. ``describe``: :meth:`Source.describe`,
    called once for a list that slots share."""
    uses: Counter[str] = Counter()
    if any(len(splits) == 1 for splits in inputs):  # else a shuffle: counting would take slots x ranges
        uses.update(_name(split) for splits in inputs for split in splits)
    texts = {key: describe(splits) for key, splits in {id(splits): splits for splits in inputs}.items()}
    return tuple(
        Origin(
            inputs=splits,
            replayable=len(splits) == 1 and uses[_name(splits[0])] == 1,
            text=texts[id(splits)],
        )
        for splits in inputs
    )


def lost_splits(sink: SinkSession, lost: Sequence[Committable]) -> tuple[JsonObject, ...]:
    """Return the split of each lost slot: written again from it, the slot is the same. Raises ReplayRefusedError."""
    if not isinstance(sink, Replays):
        raise ReplayRefusedError(f"the sink {sink.participant.name} does not report the input of its committables")
    origins = [sink.origin(committable) for committable in lost]
    for committable, origin in zip(lost, origins, strict=True):
        if not origin.replayable:
            raise ReplayRefusedError(
                f"slot {committable.slot} was not made of one input range alone: the plan moved rows between partitions"
            )
    sink.check_destination(lost)
    return tuple(origin.inputs[0] for origin in origins)


def _name(split: JsonObject) -> str:
    return repr(sorted(split.items()))
