"""What our job does with more partitions, executors, larger records, and more slots in a checkpoint."""
