"""The command line: one file a verb; the only place that prints or sets exit codes."""

from edge_sdk.cli.run import end_on_sigterm

end_on_sigterm()

from edge_sdk.cli.root import main  # noqa: E402 - to import it takes longer than a signal may

__all__ = ["main"]
