"""What several suites share. No suite imports another one."""
