"""Find why a checkpoint failed and the input that it concerns, for the person who must act."""

from collections.abc import Sequence
from dataclasses import replace

from onceward.coordinator.pipeline.causes import cause_of
from onceward.coordinator.pipeline.interfaces import Plan
from onceward.coordinator.pipeline.mailbox import Mailbox
from onceward.coordinator.pipeline.members import Members
from onceward.coordinator.printable import logger
from onceward.coordinator.protocol.values import CheckpointId, Generation, JsonObject

__all__ = ["Diagnosis"]

_log = logger("onceward.pipeline")

_NARROWING = 30.0
"""Seconds for finding the input at fault, or a quarter of the checkpoint timeout if that is less."""


class Diagnosis:
    """Diagnoses the failed checkpoints of one generation."""

    def __init__(self, members: Members, generation: Generation, mailbox: Mailbox) -> None:
        self._m = members
        self._generation = generation
        self._mailbox = mailbox

    def describe(self, checkpoint: CheckpointId, plan: Plan | None, error: Exception) -> str:
        """Return the cause of ``error`` and, if a record may have caused it, the input that fails.

        ``plan`` is what the Spark job was to read; None if it had not begun.
        """
        m = self._m
        _log.info("checkpoint %d failed: %s", checkpoint, error)
        cause = cause_of(error)
        explained = m.sink.explain(cause.text)
        if plan is None or not (explained or cause.by_record):
            return cause.text
        found = self._narrow(checkpoint, plan) if m.sink.hides_until_decided() else plan.splits
        return (
            f"{explained or cause.text}. Input: {m.source.describe(found)}. Nothing of the checkpoint becomes visible, "
            "and its records stay unread until they can be written"
        )

    def _narrow(self, checkpoint: CheckpointId, plan: Plan) -> Sequence[JsonObject]:
        """Return the smallest part of the plan that fails on its own. The checkpoint's abort covers what is written
        here."""
        m = self._m
        give_up = m.runtime.monotonic() + min(_NARROWING, m.settings.seconds("timeout") / 4)

        def fails(part: Sequence[JsonObject]) -> bool:
            try:
                some = replace(plan, splits=tuple(part), can_coalesce=False)
                m.tasks.run(generation=self._generation, checkpoint=checkpoint, plan=some)
            except Exception as error:  # noqa: BLE001 - what a transform raises
                self._mailbox.raise_error()
                return not self._mailbox.aborted(checkpoint) and m.tasks.alive() and self._by_record(error)
            return False

        def may_go_on() -> bool:
            return (
                m.runtime.monotonic() < give_up and not self._mailbox.aborted(checkpoint) and not self._mailbox.stopping
            )

        return m.narrowing.find(plan.splits, halves=m.source.halves, fails=fails, may_go_on=may_go_on)

    def _by_record(self, error: Exception) -> bool:
        cause = cause_of(error)
        return cause.by_record or self._m.sink.explain(cause.text) is not None
