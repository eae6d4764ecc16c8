"""Publish results and events over MQTT, or as lines of JSON."""
