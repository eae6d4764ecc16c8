"""What a repeated film or folder of images does when it is away for a moment, as the only stream: it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.configs import write_at_ease
from tests.support.device import Device
from tests.support.pictures import write_images, write_video

pytestmark = pytest.mark.system


@pytest.mark.parametrize("is_film", [True, False])
def test_it_begins_again_when_it_is_there_again(cell_bundle: Path, tmp_path: Path, is_film: bool) -> None:
    source, elsewhere = tmp_path / "source", tmp_path / "elsewhere"
    if is_film:
        source = write_video(source.with_suffix(".avi"), range(10), fps=20.0)
    else:
        write_images(source, ["a.png", "b.png"])
    config = write_at_ease(tmp_path, cell_bundle, {"gate": {"source": source, "repeat": True}})
    with Device(config) as device:
        device.run_on("gate")
        source.rename(elsewhere)
        device.hear(f"gate: {source}: no such file or folder", "begins again", count=2)
        elsewhere.rename(source)
        device.run_on("gate")
        assert device.stop() == 0
    assert not device.lines_with("ended")
    assert not device.lines_with("bug")
