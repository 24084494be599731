"""What one coordinator process on one core can carry."""
