"""Which recipe a bundle carries, and why."""
