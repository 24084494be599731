"""One description of a Kafka cluster for both of its clients."""
