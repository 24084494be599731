"""``onceward resolve --skip-input``: a person moves a job past missing input."""

from onceward.common.errors import ConfigurationError, RefusedError
from onceward.operate.connecting import CoordinatorLocation, job_name, operators, without_driver
from onceward.operate.prompts import confirm, print_result, say
from onceward.protocol.answers import Verdict

__all__ = ["skip_input"]


def skip_input(job: str, where: str, offset: int, reason: str, place: CoordinatorLocation, *, yes: bool) -> None:
    """Say what will be skipped, ask for confirmation, and move the job's positions. Raises RefusedError."""
    known = job_name(job)
    topic, partition = _partition(where)
    with operators(place) as (client, momentary):
        if momentary:
            without_driver(client, known)
        looked = client.skip_input(known, topic, partition, offset, reason, only_look=True)
        if looked.answer.verdict is Verdict.ACCEPTED:
            say(f"job {job} never reads {looked.skipped}, and continues at offset {offset}; the loss is recorded")
            confirm(yes, f"Job {job} was not moved")
            looked = client.skip_input(known, topic, partition, offset, reason, base=looked.base)
        summary = client.job(known)
    match looked.answer.verdict:
        case Verdict.ACCEPTED:
            print_result(
                f"Job {job} continues after {looked.skipped} when it is started next, with checkpoint "
                f"{summary.last_completed}. To undo that before: onceward restore {job} --from {looked.base} "
                "--reason 'NAME: REASON'"
            )
        case Verdict.DUPLICATE:
            print_result(f"Job {job} was moved past {looked.skipped} before.")
        case _:
            raise RefusedError(f"Job {job} was not moved: {looked.answer.detail}. Nothing was changed.")


def _partition(where: str) -> tuple[str, int]:
    topic, _, number = where.rpartition(":")
    if not topic or not number.isascii() or not number.isdigit():
        raise ConfigurationError(f"{where!r} names no partition. Nothing was changed. Write TOPIC:NUMBER.")
    return topic, int(number)
