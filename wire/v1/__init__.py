"""Generated from ``protos/`` by ``scripts/protos.py``. Never edited."""
