"""The same metric for every step."""
