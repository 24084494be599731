"""The process that decides checkpoints: its store and its service."""
