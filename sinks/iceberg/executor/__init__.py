"""Writes data files. Runs on executors: standard library and pyarrow only."""
