"""What follows from a stream's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_sdk.daemon.settings import PipelineSettings
from edge_sdk.publishing import Secret
from edge_sdk.source_options import SourceOptions

_GATE = PipelineSettings(camera="gate", source="rtsp://bob@host/live", bundle=Path("a.edge"))


@pytest.mark.parametrize(
    ("source", "every_frame", "is_paced"),
    [
        ("0", False, True),
        ("rtsp://host/live", False, True),
        ("rtsp://host/live", True, True),  # a camera has its own pace, whatever is asked
        ("pattern", False, True),
        ("street.mp4", False, True),
        ("street.mp4", True, False),
        ("one.png", False, False),
        ("folder", False, False),
        ("none.png", False, True),
        ("ftp://host/live", False, True),
    ],
)
def test_what_comes_in_turn_has_no_pace(source: str, every_frame: bool, is_paced: bool, tmp_path: Path) -> None:
    for name in ("street.mp4", "one.png"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    is_file = "." in source or source == "folder"
    location = str(tmp_path / source) if is_file and "://" not in source else source
    assert PipelineSettings(source=location, bundle=Path("a.edge"), every_frame=every_frame).paced is is_paced


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"bundle": Path("b.edge"), "latency_ms": 20.0, "tune": False, "frames": 3}, True),
        ({"source": "rtsp://bob@host/other"}, False),
        ({"source_password": Secret("new")}, False),
        ({"source_options": SourceOptions(rotate=90)}, False),
        ({"camera": "yard"}, False),  # every frame bears it
        ({"every_frame": True}, False),
    ],
)
def test_an_opened_source_serves_settings_that_read_it_the_same_way(changes: dict[str, Any], is_same: bool) -> None:
    other = msgspec.structs.replace(_GATE, **changes)
    assert _GATE.same_source(other) is is_same
    assert other.same_source(_GATE) is is_same
