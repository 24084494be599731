"""Find why a checkpoint failed and the input that it concerns, for the person who must act."""

from collections.abc import Sequence
from dataclasses import replace

from onceward.common.printable import logger
from onceward.connectors.interfaces import Plan
from onceward.driver.causes import cause_of
from onceward.driver.mailbox import Mailbox
from onceward.driver.members import Members
from onceward.driver.narrowing import Failure
from onceward.driver.outputs import Outputs
from onceward.protocol.values import CheckpointId, Generation, JsonObject

__all__ = ["Diagnosis"]

_log = logger("onceward.pipeline")

_NARROWING = 30.0
"""Seconds for finding the input at fault, or a quarter of the checkpoint timeout if that is less."""


class Diagnosis:
    """Diagnoses the failed checkpoints of one generation."""

    def __init__(self, members: Members, outputs: Outputs, generation: Generation, mailbox: Mailbox) -> None:
        self._m = members
        self._outputs = outputs
        self._generation = generation
        self._mailbox = mailbox

    def describe(self, checkpoint: CheckpointId, plan: Plan | None, error: Exception) -> str:
        """Return the cause of ``error`` and the input that fails: what a record may have caused is narrowed down.

        ``plan`` is what the Spark job was to read; None if it had not begun.
        """
        m = self._m
        _log.info("checkpoint %d failed: %s", checkpoint, error)
        cause = cause_of(error)
        if plan is None or (self._outputs.explain(cause.text) is None and not cause.by_record):
            return cause.text
        failure = Failure(plan.splits, error)
        if self._by_record(error) and self._outputs.hides_until_decided():
            failure = self._narrow(checkpoint, plan, failure)
        text = cause_of(failure.error).text
        refusal = self._outputs.explain(text)
        return (
            f"{text if refusal is None else refusal.text}. Input: {m.source.describe(failure.splits)}. Nothing of the "
            "checkpoint becomes visible, and its records stay unread until they can be written"
        )

    def _narrow(self, checkpoint: CheckpointId, plan: Plan, failure: Failure) -> Failure:
        """Return the failure of the smallest part of the plan that fails on its own. The checkpoint's abort covers what
        is written here."""
        m = self._m
        give_up = m.runtime.monotonic() + min(_NARROWING, m.settings.seconds("timeout") / 4)

        def run(part: Sequence[JsonObject]) -> Exception | None:
            try:
                some = replace(plan, splits=tuple(part), can_coalesce=False)
                m.tasks.run(generation=self._generation, checkpoint=checkpoint, plan=some, sinks=self._outputs.names)
            except Exception as error:  # noqa: BLE001 - what a transform raises
                self._mailbox.raise_error()
                failed = not self._mailbox.aborted(checkpoint) and m.tasks.alive() and self._by_record(error)
                return error if failed else None
            return None

        def may_go_on() -> bool:
            return (
                m.runtime.monotonic() < give_up and not self._mailbox.aborted(checkpoint) and not self._mailbox.stopping
            )

        with m.tasks.quiet():
            return m.narrowing.find(failure, halves=m.source.halves, run=run, may_go_on=may_go_on)

    def _by_record(self, error: Exception) -> bool:
        cause = cause_of(error)
        refusal = self._outputs.explain(cause.text)
        return cause.by_record if refusal is None else refusal.by_record
