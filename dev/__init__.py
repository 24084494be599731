"""The base of demo and tests: a local Kafka, and faults. No other part of the distribution imports it."""
