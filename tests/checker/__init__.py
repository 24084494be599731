"""The checker: records runs for the judge in ``coordinator/ops/verify``, and the proofs that both can say FAIL."""
