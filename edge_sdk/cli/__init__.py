"""The command line: one file a verb; the only place that prints or sets exit codes."""

import os
import signal
import sys


def end_on_sigterm() -> None:
    """Let SIGTERM end `edge-sdk run` at once, with 0, until the run itself hears the signal.

    A service manager may change its mind in the first moments of a start, before anything is begun that would have to
    be ended; so this stands before anything is imported that takes time. Other verbs end by the signal, as programs do.
    """
    if sys.argv[1:2] == ["run"] and "--check" not in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


end_on_sigterm()

from edge_sdk.cli.root import main  # noqa: E402 - to import it takes longer than a signal may

__all__ = ["main"]
