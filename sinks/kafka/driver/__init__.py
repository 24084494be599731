"""The sink as the job's driver runs it: preflight, pre-commit, ids that workers may reuse, replays."""
