"""Sources, by the system they read from."""
