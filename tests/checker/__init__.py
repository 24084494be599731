"""The checker: records runs for the judge in ``operate/verify``, and proves that both can report FAIL."""
