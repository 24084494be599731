"""Our own job as one of the systems: through a DataFrame, without the JVM, and at least once."""
