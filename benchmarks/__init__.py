"""Measurements. They print figures, and never fail because a machine is slow."""
