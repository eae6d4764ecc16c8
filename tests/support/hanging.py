"""At SIGUSR1 a pipeline's next step never ends, while every other thread of the program goes on.

Is imported by a Python that finds it as `sitecustomize`.
"""

import signal
import time


def _hang(*_arguments: object) -> None:
    from edge_sdk.loop import Loop

    def step_that_never_ends(_loop: Loop, _timeout_s: float = 0) -> None:
        time.sleep(1e6)

    Loop.step = step_that_never_ends  # type: ignore[assignment, method-assign]


signal.signal(signal.SIGUSR1, _hang)
