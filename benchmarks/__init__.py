"""Measurements. They print numbers; they never fail because a machine was slow."""
