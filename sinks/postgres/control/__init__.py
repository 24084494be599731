"""What runs in any process: it merges, aborts and sweeps what executors have staged."""
