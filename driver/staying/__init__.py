"""Tasks that stay for a whole generation: the driver orders them to cut each checkpoint."""
