"""What every room may use: errors, pauses, kill points, broken links, printable text."""
