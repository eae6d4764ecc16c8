"""What asks for the configuration to be read again."""

from __future__ import annotations

import os
import signal

from edge_sdk.health.hangup import hearing_hangups


def test_a_manager_s_hangup_is_heard_once_and_the_signal_given_back() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with hearing_hangups(has_manager=True) as hangup:
        assert not hangup.take()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
        assert hangup.take()
        assert not hangup.take()
        os.kill(os.getpid(), signal.SIGHUP)
        assert hangup.take()
    assert signal.getsignal(signal.SIGHUP) is before


def test_without_a_manager_a_terminal_that_goes_ends_the_program() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with hearing_hangups(has_manager=False) as hangup:
        assert signal.getsignal(signal.SIGHUP) is before
        assert not hangup.take()
