"""The durable outbox: it keeps events on disk until the broker has them, over restarts and power cuts."""
