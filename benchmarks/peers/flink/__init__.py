"""Flink SQL through PyFlink."""
