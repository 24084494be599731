"""What runs on the driver."""
