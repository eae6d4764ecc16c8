"""Results to whoever listens: over MQTT, or as lines of JSON."""
