"""The system over networks that lose, delay, cut and half-open (docs/network.md)."""
