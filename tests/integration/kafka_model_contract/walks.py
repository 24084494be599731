"""Random scripts: requests in any order, with any producer id and epoch given so far."""

from random import Random

from tests.integration.kafka_model_contract.sides import Ids
from tests.integration.kafka_model_contract.stage import Stage

__all__ = ["walk"]

_STEPS = 40


def walk(stage: Stage, seed: int) -> None:
    """Make the same requests for the same seed, as long as the answers are the same."""
    random = Random(seed)
    out = stage.topic(partitions=2)
    fresh: Ids = (stage.name("t"), -1, -1)
    known = [stage.initialise(fresh)]
    newest = known[0]
    implicit = random.random() < 0.3
    """Whether this client enlists by writing."""

    def any_id() -> Ids:
        if random.random() < 0.8:
            return newest
        name, producer, epoch = random.choice(known)
        return name, producer, max(0, epoch + random.choice((-1, 0, 0, 1)))

    for _ in range(_STEPS):
        match random.randrange(12):
            case 0 | 1:
                stage.add_partition(any_id(), out, random.randrange(2))
            case 2 | 3 | 4:
                partition = random.randrange(2)
                stage.produce(any_id(), out, [b"x"], random.randrange(4), partition=partition, implicit=implicit)
            case 5:
                stage.add_offsets(any_id())
            case 6:
                stage.commit_offset(any_id(), random.randrange(100), "token", implicit=implicit)
            case 7 | 8:
                commit, version = random.random() < 0.6, random.choice((1, 4, 5, 5))
                stage.end(any_id(), commit=commit, version=version)
                newest = _as_told(stage, newest, raised=version == 5 and random.random() < 0.5)
            case 9:
                given = stage.initialise(fresh if random.random() < 0.6 else any_id())
                if given[1] >= 0:
                    newest = given
                    known.append(given)
            case 10:
                stage.delete_group()
            case _:
                stage.plain_offset(random.randrange(100), "plain")
        stage.describe()
        stage.receipt()
    stage.look(out)


def _as_told(stage: Stage, newest: Ids, *, raised: bool) -> Ids:
    """The ids of a client that continues with the raised epoch (`raised`) or with its own."""
    return stage.ids() if raised else newest
