"""What runs on executors: the standard library, pyarrow and psycopg."""
