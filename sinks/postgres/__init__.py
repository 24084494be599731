"""PostgreSQL sink: executors copy rows into staging tables; any process with the committable merges them."""
