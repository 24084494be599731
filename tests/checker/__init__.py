"""The checker: records runs for the judge in ``coordinator/ops/verify``, and proves that both can report FAIL."""
