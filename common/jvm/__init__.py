"""Java, and quick starts of its virtual machine."""
