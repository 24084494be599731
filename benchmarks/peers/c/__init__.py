"""A C program on librdkafka."""
