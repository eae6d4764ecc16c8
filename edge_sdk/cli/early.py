"""Early: SIGTERM in the first moments of a run, before anything is begun that would have to be ended.

Imports nothing that takes time: until this stands, a service manager that changes its mind ends the program by the
signal itself. From then on `stop` hears it.
"""

from __future__ import annotations

import os
import signal
import sys


def end_on_sigterm() -> None:
    """Until somebody else hears the signal, it ends a run at once, with 0; other verbs end by it, as programs do."""
    if sys.argv[1:2] == ["run"] and "--check" not in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
