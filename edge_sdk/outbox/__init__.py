"""The durable outbox: events that wait for the broker on disk, over restarts and power cuts."""
