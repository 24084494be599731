"""Other versions of Kafka, Python, PySpark and PostgreSQL, each alone beside the pinned rest (README.md)."""
