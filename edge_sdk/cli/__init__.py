"""The command line, with one module for each command. Only this package prints and sets exit codes."""

import os
import signal
import sys

# The imports below may take longer than a service manager waits after SIGTERM. Until `run` sets its own handlers, both
# signals end it at once with exit code 0, because nothing has begun yet. Other commands keep the default actions.
if sys.argv[1:2] == ["run"] and "--check" not in sys.argv:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))

from edge_sdk.cli.root import main

__all__ = ["main"]
