"""From which input each slot of a checkpoint was made, and whether a lost slot can be made from it again."""

from collections import Counter
from collections.abc import Callable, Sequence

from onceward.connectors.interfaces import Origin, ReplayRefusedError, Replays, SinkSession, split_name
from onceward.driver.outputs import Inputs, Origins
from onceward.protocol.encoded import decoded
from onceward.protocol.values import Committable, JsonObject

__all__ = ["lost_splits", "origins_of", "require_records", "require_slots", "slot_origins"]


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
        uses.update(split_name(split) for splits in inputs for split in splits)
    texts = {key: describe(splits) for key, splits in {id(splits): splits for splits in inputs}.items()}
    return tuple(
        Origin(
            inputs=splits,
            replayable=len(splits) == 1 and uses[split_name(splits[0])] == 1,
            text=texts[id(splits)],
        )
        for splits in inputs
    )


def lost_splits(sink: SinkSession, lost: Sequence[Committable]) -> tuple[JsonObject, ...]:
    """Return the splits of the lost slots: one for each slot, or all of a checkpoint that is lost as a whole. Written
    again from them, the slots are the same. Raises ReplayRefusedError."""
    if not isinstance(sink, Replays):
        raise ReplayRefusedError(f"the sink {sink.participant.name} does not report the input of its committables")
    origins = [sink.origin(committable) for committable in lost]
    for committable, origin in zip(lost, origins, strict=True):
        if origin.whole and not origin.replayable:
            raise ReplayRefusedError("an older release has pre-committed the checkpoint, and did not store its input")
        if not origin.replayable:
            raise ReplayRefusedError(
                f"slot {committable.slot} was not made of one input range alone: the plan moved rows between partitions"
            )
    sink.check_destination(lost)
    return tuple(split for origin in origins for split in origin.inputs)


def require_records(lost: Sequence[Committable], written: int) -> None:
    """Check that as many records were written again as the lost slots had: in a job with dead letters a function that
    now raises for other records would drop them here, or write them twice. Raises ReplayRefusedError."""
    known = [decoded(one.document).body.get("records", -1) for one in lost]
    if -1 in known:
        raise ReplayRefusedError("the sink does not store how many records its slots had, and the job has dead letters")
    if (before := sum(known)) != written:
        raise ReplayRefusedError(
            f"other records are set aside than before: the lost slots had {before} records, and "
            f"{written} would be written"
        )


def require_slots(sink: SinkSession, lost: Sequence[Committable], written: Sequence[Sequence[JsonObject]]) -> None:
    """Check that each lost slot was written again from its split alone. ``written[slot]``: the splits that made it now.
    One committable for a whole checkpoint has all slots, however many there are. Raises ReplayRefusedError."""
    assert isinstance(sink, Replays), "lost_splits() looks first"
    origins = [sink.origin(committable) for committable in lost]
    if not all(origin.whole for origin in origins) and [list(one) for one in written] != [
        list(origin.inputs) for origin in origins
    ]:
        raise ReplayRefusedError(
            f"the transform moves rows between partitions now: {len(written)} slots came of {len(origins)} ranges"
        )
