"""The command line, with one module for each command. Only this package prints and sets exit codes."""

import os
import signal
import sys
import threading

# The imports below may take longer than a service manager waits after SIGTERM. Until `run` sets its own handlers, both
# signals end it at once with exit code 0, because nothing has begun yet. An interrupt ends other commands at once too.
_is_run = sys.argv[1:2] == ["run"] and "--check" not in sys.argv
_is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
_ends_others = not _is_run and _is_usual and threading.current_thread() is threading.main_thread()
if _is_run:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
elif _ends_others:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # without the traceback of an import

from edge_sdk.cli.root import main  # noqa: E402 - after the handlers

if _ends_others:
    signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = ["main"]
