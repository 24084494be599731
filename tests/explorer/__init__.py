"""Exhaustive explorer of small worlds: every interleaving of coordinator, drivers, network and faults within bounds."""
