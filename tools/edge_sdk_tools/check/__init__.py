"""The check: what a model must be before anything else is done with it."""
