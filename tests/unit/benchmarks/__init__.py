"""The benchmarks at their smallest size: whether they measure, not their results."""
