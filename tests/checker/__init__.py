"""The checker: records runs for the judge of ``coordinator.ops.verify``, and the proofs that both can say FAIL."""
