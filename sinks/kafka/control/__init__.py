"""Ends transactions and proves their outcomes. Runs in any process that has a committable: driver or coordinator."""
