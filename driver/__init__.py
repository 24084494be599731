"""The loop of a job: what its driver does, checkpoint by checkpoint."""
