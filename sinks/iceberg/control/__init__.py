"""Commits, proves outcomes and sweeps. Runs in any process: driver, coordinator or command."""
