"""The whole system on virtual time: one seed drives everything that happens."""
