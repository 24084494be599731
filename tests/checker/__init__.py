"""The checker: the recorder of runs for the judge in ``coordinator/ops/verify``, and proofs that both can report
FAIL."""
