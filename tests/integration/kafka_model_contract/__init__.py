"""The same scripts on the model and on a real broker, with the answers of both."""
