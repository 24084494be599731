"""``make mutation``: mutmut changes the product in every small way; what the tests without a broker miss is listed."""
