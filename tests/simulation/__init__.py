"""The whole system on virtual time: one seed determines everything that happens."""
