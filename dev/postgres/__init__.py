"""A real PostgreSQL on this machine, from its published jar: for tests and ``onceward dev postgres``."""
