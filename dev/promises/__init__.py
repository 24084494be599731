"""What a source and a sink of one's own must do, as checks to run from pytest. Users import ``onceward.testing``."""
