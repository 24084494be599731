"""The PySpark loop, and the interfaces of sources and sinks."""
