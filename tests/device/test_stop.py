"""What ends a run from outside, and what asks for its configuration to be read again."""

from __future__ import annotations

import os
import signal

from edge_sdk.stop import Stop, stopping_on_signals


def test_a_service_s_hangup_asks_for_a_reload_and_the_signal_is_given_back() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with stopping_on_signals(reloads=True) as stop:
        assert not stop.reload
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.reload
        assert not stop.is_asked()
    assert signal.getsignal(signal.SIGHUP) is before


def test_without_a_service_a_terminal_that_goes_ends_the_program_in_order() -> None:
    with stopping_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.is_asked()
        assert not stop.reload


def test_whoever_asked_not_to_hear_of_the_terminal_does_not() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_asked()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_part_ends_with_the_whole_and_the_whole_not_with_a_part() -> None:
    whole = Stop()
    part, other = Stop(whole), Stop(whole)
    part.ask("reload")
    assert part.is_asked()
    assert not other.is_asked()
    assert not whole.is_asked()
    whole.ask()
    assert other.is_asked()
    assert (part.reason, other.reason) == ("reload", "signal")
