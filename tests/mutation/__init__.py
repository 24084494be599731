"""``make mutation``: mutmut makes every small change to the product; the report lists what the tests without a broker
miss."""
