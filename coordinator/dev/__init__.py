"""What demo and tests run on: a local Kafka, and faults. Nothing else of the distribution imports it."""
