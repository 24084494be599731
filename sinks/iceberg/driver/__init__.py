"""The sink as the job's driver runs it: preflight, columns, pre-commit."""
