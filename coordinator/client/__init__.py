"""The driver's session with its coordinator."""
