"""What commands have set of cameras over reloads, and the size of pictures."""

from __future__ import annotations

from edge_sdk.messages.commands import PERMISSIONS, UNCHANGED, ControlState
from edge_sdk.service.runner import Controls


def test_a_reload_keeps_what_may_still_be_set() -> None:
    controls = Controls()
    gate, yard = controls.of("gate"), controls.of("yard")
    gate.change(paused=True, confidence=0.5, max_fps=2)
    yard.change(paused=True)
    controls.keep_only({"gate"}, PERMISSIONS)
    assert controls.of("gate") is gate
    assert gate.state == ControlState(paused=True, confidence=0.5, max_fps=2)
    assert not controls.of("yard").state.paused
    controls.keep_only({"gate"}, ("set_rate",))  # nobody could resume it any more
    assert gate.state == ControlState(paused=False, max_fps=2)
    controls.keep_only({"gate"}, ())
    assert gate.state == UNCHANGED
