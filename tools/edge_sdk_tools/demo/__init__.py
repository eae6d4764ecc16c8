"""`edge-sdk demo`: a real detector finds people in a real video and publishes them over MQTT."""
