"""The coordinator, which decides checkpoints and stores them, and the pipeline that it drives."""
