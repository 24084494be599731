"""Convert protocol values to messages and back, for the service and the client."""
