"""What tables of a lake have in common: tasks write files that no reader sees, and one commit adds them."""
