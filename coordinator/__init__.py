"""Decides, remembers and talks: the coordinator, and the pipeline that it drives."""
