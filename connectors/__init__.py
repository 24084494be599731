"""The seam: what a source and a sink are to the driver, and what their tasks get."""
