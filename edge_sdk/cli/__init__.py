"""The command line: one file a command; the only place that prints or sets exit codes."""

import os
import signal
import sys

# What follows takes longer to import than a service manager may wait. Until the run itself hears SIGTERM, it ends a run
# at once and with 0, for nothing has begun that would have to be ended; other commands end by the signal.
if sys.argv[1:2] == ["run"] and "--check" not in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

from edge_sdk.cli.root import main

__all__ = ["main"]
