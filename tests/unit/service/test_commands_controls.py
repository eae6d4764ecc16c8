"""What commands have set of cameras over reloads, and the size of pictures."""

from __future__ import annotations

from edge_sdk.messages.commands import CLASSES
from edge_sdk.service.runner import Controls


def test_a_reload_keeps_what_may_still_be_set() -> None:
    controls = Controls()
    gate, yard = controls.of("gate"), controls.of("yard")
    gate.change(paused=True, confidence=0.5, max_fps=2)
    yard.change(paused=True)
    controls.keep_only({"gate"}, CLASSES)
    assert controls.of("gate") is gate
    assert (gate.paused, gate.confidence, gate.max_fps) == (True, 0.5, 2)
    assert not controls.of("yard").paused
    version = gate.version
    controls.keep_only({"gate"}, ("set_rate",))  # nobody could resume it any more
    assert (gate.paused, gate.confidence, gate.max_fps) == (False, None, 2)
    assert gate.version > version
    controls.keep_only({"gate"}, ())
    assert gate.max_fps == 0
