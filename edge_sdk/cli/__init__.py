"""The command line: one file a verb; the only place that prints or sets exit codes."""

from edge_sdk.cli.root import main

__all__ = ["main"]
