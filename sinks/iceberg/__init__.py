"""Iceberg sink: executors write data files; any process with the committable adds them to the table, in one commit."""
