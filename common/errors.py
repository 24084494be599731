"""The error tree. It has one root, so that a program can catch every error of Onceward with one name.

    OncewardError
    ├── ConfigurationError      usage: an argument or a setting is wrong; nothing was started         exit code 2
    ├── PreflightError          the clusters or the Spark session are unsafe; nothing was started     exit code 3
    ├── HaltedError             a person must decide; nothing was guessed                             exit code 4
    ├── FencedError             a newer generation owns the job; this process must change nothing     exit code 5
    ├── GenerationEndedError    the coordinator has ended this generation; the driver opens the next one
    ├── ClaimChangedError       another claim appeared meanwhile; nothing of the job was touched
    ├── CoordinatorLostError    the coordinator cannot be reached or its store failed                 exit code 6
    ├── RefusedError            the coordinator refused a call; its state is unchanged
    │   └── JobBusyError        another driver has the job
    ├── StoreError              the store failed; whether the last write happened is unknown
    └── CheckpointFailedError   one checkpoint cannot be completed; its records belong to the next one
        └── PostponedError      the same, and they are not to be read before a time

Every message says what happened, what it means for the data, and what to do next.
"""

from enum import IntEnum

__all__ = [
    "CheckpointFailedError",
    "ClaimChangedError",
    "ConfigurationError",
    "CoordinatorLostError",
    "ExitCode",
    "FencedError",
    "GenerationEndedError",
    "HaltedError",
    "JobBusyError",
    "OncewardError",
    "PostponedError",
    "PreflightError",
    "RefusedError",
    "StoreError",
]


class ExitCode(IntEnum):
    """Exit code of a job's process, for its supervisor (docs/reference/exit-codes.md)."""

    FINISHED = 0
    BUG = 1
    USAGE = 2
    PREFLIGHT = 3
    HALTED = 4
    FENCED = 5
    COORDINATOR_LOST = 6
    LOSSES = 7
    """For listings: records were given up, and their loss is not acknowledged."""


class OncewardError(Exception):
    """Root of all errors of this distribution."""

    exit_code: ExitCode = ExitCode.BUG


class ConfigurationError(OncewardError):
    """An argument, a setting or a file is wrong. Nothing was started, no data was touched."""

    exit_code = ExitCode.USAGE


class PreflightError(OncewardError):
    """The clusters or the Spark session do not allow exactly-once. Nothing was started; the message lists all
    problems."""

    exit_code = ExitCode.PREFLIGHT


class HaltedError(OncewardError):
    """The job cannot continue without a person; nothing was guessed and nothing was dropped."""

    exit_code = ExitCode.HALTED


class FencedError(OncewardError):
    """A newer generation owns the job. This process must not touch its transactions any more."""

    exit_code = ExitCode.FENCED


class GenerationEndedError(OncewardError):
    """The coordinator has ended this generation, for example because it heard nothing from its driver for a lease. No
    other driver owns the job: this one may open the next generation, and must change nothing more for this one."""


class ClaimChangedError(OncewardError):
    """Another claim on the job appeared after the coordinator was asked for the job. Nothing of the job was touched.
    The driver's next attempt asks the coordinator whether the job may run from its store."""


class CoordinatorLostError(OncewardError):
    """The coordinator did not answer for too long, or had to exit because its store failed."""

    why: str = ""
    """The reason alone; empty if it is not known."""

    exit_code = ExitCode.COORDINATOR_LOST


class RefusedError(OncewardError):
    """The coordinator refused a call. Its state is unchanged."""

    code: str = ""
    """gRPC's name of the reason, for example ``NOT_FOUND``; empty if none was given."""

    exit_code = ExitCode.USAGE


class JobBusyError(RefusedError):
    """Another driver has the job, and the wait for its end was too long or was stopped. Nothing was read or written."""


class StoreError(OncewardError):
    """The store failed. Whether the last write happened is unknown: exit, reopen, read again."""

    exit_code = ExitCode.COORDINATOR_LOST


class CheckpointFailedError(OncewardError):
    """One checkpoint cannot be completed. It is declined and aborted; its records belong to the next one."""


class PostponedError(CheckpointFailedError):
    """The function on records or batches asks to be called again later."""

    def __init__(self, message: str, *, after: float) -> None:
        """``after``: seconds for which the records must not be read again."""
        super().__init__(message)
        self.after = after
