"""The same scripts on the model and on a real broker, and what both say."""
