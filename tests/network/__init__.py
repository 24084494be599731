"""The system over networks that lose, delay and cut traffic or leave connections half-open (README.md)."""
