"""Messages: what a device publishes and understands, its JSON and its topics."""
