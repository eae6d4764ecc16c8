"""The service on a device: pipelines from camera to broker, their supervision, health, reloads and commands."""
