"""edge-sdk on the device: run a verified bundle on the freshest camera frame and publish what it sees."""

__version__ = "0.1.0"
