"""The benchmarks at their smallest: whether they measure, not what."""
